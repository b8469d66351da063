"""Decoding 8-bit codes, 64 numbers a call (see `dist_mp.codec.lanes`).

Where the machine can permute bytes (AVX512-VBMI), each of the four bytes of a float32 magnitude is one look-up for 64
codes at a time, in a table of 128 bytes; elsewhere a number is a look-up in a table of 128 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dist_mp.codec.lanes import (
    BYTES,
    FLOATS,
    GROUP,
    I8,
    I32,
    INTS,
    LANES,
    SIGN,
    Table,
    call,
    ints,
    load,
    permutes_bytes,
    splat,
    store,
)

GROUPS = GROUP // LANES
PLANES = 4 * 128
"""Where the bytes of the magnitudes lie behind the magnitudes, in four rows of 128."""
ALL_BYTES = ir.VectorType(I8, GROUP)


class Decoder:
    """What codes stand for, before the scale."""

    def __init__(self, context: Any, builder: Any, book: Any, top: Any) -> None:
        """Load the tables at address `book` (`CodeBook.decoding_table`); `top` is a number or None."""
        self._builder = builder
        self._top = None if top is None else splat(builder, top)
        self._by_bytes = self._top is None and permutes_bytes(context)
        if self._by_bytes:
            self._planes = [
                [load(builder, book, PLANES + 128 * plane + 64 * half, ALL_BYTES) for half in range(2)]
                for plane in range(4)
            ]
        else:
            self._table = Table(builder, context, book, 0, 128)

    def __call__(self, address: Any) -> list[Any]:
        """Four vectors for the 64 codes at an address."""
        if self._by_bytes:
            return self._from_bytes(load(self._builder, address, 0, ALL_BYTES))
        return [self._from_table(address, group) for group in range(GROUPS)]

    def _from_bytes(self, codes: Any) -> list[Any]:
        builder = self._builder
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        planes = [call(builder, name, ALL_BYTES, [low, codes, high]) for low, high in self._planes]
        sign = builder.and_(codes, ir.Constant(ALL_BYTES, [-128] * GROUP))
        planes[3] = builder.or_(planes[3], sign)
        low, high = (self._interleaved(planes[i], planes[i + 1], ir.IntType(16)) for i in (0, 2))
        return [
            builder.bitcast(vector, FLOATS)
            for half in range(2)
            for vector in self._interleaved(low[half], high[half], I32)
        ]

    def _interleaved(self, one: Any, two: Any, kind: Any) -> list[Any]:
        """Vectors of numbers twice as wide, with their low halves from `one` and their high halves from `two`."""
        count = one.type.count
        halves = []
        for half in range(2):
            first = half * count // 2
            order = [i + count * (k == 1) for i in range(first, first + count // 2) for k in range(2)]
            mixed = self._builder.shuffle_vector(one, two, ir.Constant(ir.VectorType(I32, count), order))
            halves.append(self._builder.bitcast(mixed, ir.VectorType(kind, count // 2)))
        return halves

    def _from_table(self, address: Any, group: int) -> Any:
        builder = self._builder
        code = builder.zext(load(builder, address, LANES * group, BYTES), INTS)
        sign = builder.and_(builder.shl(code, ints(24)), ints(SIGN))
        value = builder.bitcast(builder.or_(builder.bitcast(self._table(code), INTS), sign), FLOATS)
        if self._top is None:
            return value
        return builder.select(builder.icmp_signed("==", code, ints(128)), self._top, value)


def _decoder(context: Any, builder: Any, book: Any, kind: types.Type, top: Any) -> Decoder:
    return Decoder(context, builder, book, None if kind == types.none else top)


@intrinsic
def decode_group(
    typing: Any, wire: types.Type, out: types.Type, scale: types.Type, book: types.Type, top: types.Type
) -> tuple[Any, Callable[..., Any]]:
    """Write 64 numbers, `scale` times what the codes stand for. Addresses but for `scale` and `top`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wire, out, scale, book, top_value = args
        decoder, factor = _decoder(context, builder, book, top, top_value), splat(builder, scale)
        for group, value in enumerate(decoder(wire)):
            store(builder, builder.fmul(value, factor), out, 4 * LANES * group)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.float32, types.uint64, top), generate


@intrinsic
def add_group(
    typing: Any, wire: types.Type, total: types.Type, scale: types.Type, book: types.Type, top: types.Type
) -> tuple[Any, Callable[..., Any]]:
    """As `decode_group`, but add to the 64 numbers that are there; each product is rounded before it is added."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wire, total, scale, book, top_value = args
        decoder, factor = _decoder(context, builder, book, top, top_value), splat(builder, scale)
        for group, value in enumerate(decoder(wire)):
            before = load(builder, total, 4 * LANES * group, FLOATS)
            store(builder, builder.fadd(before, builder.fmul(value, factor)), total, 4 * LANES * group)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.float32, types.uint64, top), generate


@intrinsic
def pair_group(
    typing: Any,
    first: types.Type,
    second: types.Type,
    out: types.Type,
    scale_first: types.Type,
    scale_second: types.Type,
    book: types.Type,
    top: types.Type,
) -> tuple[Any, Callable[..., Any]]:
    """Write 64 sums of two wires, as `decode_group` and then `add_group` would."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second, out, scale_first, scale_second, book, top_value = args
        decoder = _decoder(context, builder, book, top, top_value)
        factors = splat(builder, scale_first), splat(builder, scale_second)
        for group, (one, two) in enumerate(zip(decoder(first), decoder(second), strict=True)):
            total = builder.fadd(builder.fmul(one, factors[0]), builder.fmul(two, factors[1]))
            store(builder, total, out, 4 * LANES * group)
        return context.get_dummy_value()

    signature = types.void(types.uint64, types.uint64, types.uint64, types.float32, types.float32, types.uint64, top)
    return signature, generate
