"""Kernels of 8-bit code books as vector instructions: 64 numbers a call, all tables in registers.

A loop over a table look-up does not become fast by itself: LLVM turns it into gathers. Here the LLVM code is written
out, four vectors of 16 lanes at a time. With AVX-512 a table of 16 or 32 entries is one permutation of registers, so
that finding one of 128 codes takes 7 comparisons and no access to memory. With AVX2 a permutation has 8 entries.
Elsewhere a look-up is a load for each lane. The result is the same.

The emitters below write code for vectors of 16 lanes; `builder` is LLVM's and all numbers are float32 or int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

LANES = 16
GROUP = 64
"""Numbers that one call treats."""

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)
BYTES = ir.VectorType(I8, LANES)
SIGN = -(1 << 31)


def ints(value: int) -> Any:
    """The same whole number in all lanes."""
    return ir.Constant(INTS, [value] * LANES)


def splat(builder: Any, number: Any) -> Any:
    """One number in all lanes."""
    kind = ir.VectorType(number.type, LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ints(0))


def load(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    """What lies `offset` bytes after an address, at any alignment."""
    place = builder.add(address, ir.Constant(I64, offset))
    return builder.load(builder.inttoptr(place, kind.as_pointer()), align=1)


def store(builder: Any, value: Any, address: Any, offset: int) -> None:
    """Write `value` at `offset` bytes after an address, at any alignment."""
    place = builder.add(address, ir.Constant(I64, offset))
    builder.store(value, builder.inttoptr(place, value.type.as_pointer()), align=1)


def call(builder: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    """Call a function of LLVM."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


def features(context: Any) -> list[str]:
    """Those for which Numba compiles, which are not this machine's if NUMBA_CPU_NAME says so."""
    return context.codegen().magic_tuple()[2].split(",")


def permutes_bytes(context: Any) -> bool:
    """Whether one instruction looks 64 bytes up in a table of 128."""
    return {"+avx512vbmi", "+avx512bw"} <= set(features(context))


class Table:
    """A table of 16, 32, 64 or 128 float32 numbers in memory, looked up with the low bits of an index."""

    def __init__(self, builder: Any, context: Any, address: Any, offset: int, entries: int) -> None:
        """Load it into registers, where the machine can permute them."""
        self._builder, self._address, self._offset, self._entries = builder, address, offset, entries
        # With AVX2 loads are faster than the 16 permutations that a table of 128 entries takes.
        available = features(context)
        self._width = 16 if "+avx512f" in available else 8 if "+avx2" in available and entries <= 32 else 0
        rows = range(entries // self._width if self._width else 0)
        row = ir.VectorType(F32, self._width)
        self._rows = [load(builder, address, offset + 4 * self._width * number, row) for number in rows]

    def __call__(self, index: Any) -> Any:
        """The entries at `index`."""
        if not self._width:
            return self._loaded(index)
        if self._width == LANES:
            return self._permuted(index, self._rows)
        halves = [range(LANES // 2), range(LANES // 2, LANES)]
        low, high = (self._permuted(self._shuffled(index, index, half), self._rows) for half in halves)
        return self._shuffled(low, high, range(LANES))

    def _permuted(self, index: Any, rows: list[Any]) -> Any:
        builder, kind = self._builder, rows[0].type
        if len(rows) == 1:
            name = "llvm.x86.avx512.permvar.sf.512" if self._width == 16 else "llvm.x86.avx2.permps"
            return call(builder, name, kind, [rows[0], index])
        if len(rows) == 2 and self._width == 16:
            return call(builder, "llvm.x86.avx512.vpermi2var.ps.512", kind, [rows[0], index, rows[1]])
        half = len(rows) // 2
        low, high = self._permuted(index, rows[:half]), self._permuted(index, rows[half:])
        bit = builder.and_(index, ir.Constant(index.type, [half * self._width] * self._width))
        zero = ir.Constant(index.type, [0] * self._width)
        return builder.select(builder.icmp_signed("!=", bit, zero), high, low)

    def _shuffled(self, one: Any, two: Any, order: range) -> Any:
        return self._builder.shuffle_vector(one, two, ir.Constant(ir.VectorType(I32, len(order)), list(order)))

    def _loaded(self, index: Any) -> Any:
        builder = self._builder
        start = builder.inttoptr(builder.add(self._address, ir.Constant(I64, self._offset)), F32.as_pointer())
        index = builder.and_(index, ints(self._entries - 1))
        result = ir.Constant(FLOATS, ir.Undefined)
        for lane in range(LANES):
            at = ir.Constant(I32, lane)
            entry = builder.load(builder.gep(start, [builder.extract_element(index, at)]), align=1)
            result = builder.insert_element(result, entry, at)
        return result


class Search:
    """Finds the code of a magnitude: how many of 127 ascending bounds it reaches (see `CodeBook.tiled_bounds`)."""

    def __init__(self, builder: Any, context: Any, address: Any) -> None:
        """Take the tables at `address`."""
        self._builder = builder
        self._levels = []
        offset = 0
        for level in range(7):
            entries = max(LANES, 1 << level)
            self._levels.append(Table(builder, context, address, offset, entries))
            offset += 4 * entries

    def __call__(self, magnitude: Any, before: Any) -> Any:
        """``before << 7 | code``: each level appends the bit that it finds."""
        builder, found = self._builder, before
        bits = builder.bitcast(magnitude, INTS)
        for level in self._levels:
            difference = builder.sub(builder.bitcast(level(found), INTS), bits)
            found = call(builder, "llvm.fshl.v16i32", INTS, [found, difference, ints(1)])
        return found


def load_numbers(builder: Any, address: Any, group: int, like: types.Type) -> Any:
    """Vector `group` of an array in the type of `like` (see `dist_mp.codec.numbers`), as float32."""
    if like == types.float32:
        return load(builder, address, 4 * LANES * group, FLOATS)
    half = load(builder, address, 2 * LANES * group, ir.VectorType(I16, LANES))
    if like == types.uint16:
        return builder.fpext(builder.bitcast(half, ir.VectorType(ir.HalfType(), LANES)), FLOATS)
    return builder.bitcast(builder.shl(builder.zext(half, INTS), ints(16)), FLOATS)


def store_bytes(builder: Any, vectors: Sequence[Any], address: Any) -> None:
    """The low bytes of four vectors."""
    parts = [builder.trunc(v, BYTES) for v in vectors]
    while len(parts) > 1:
        order = ir.Constant(ir.VectorType(I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [builder.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    store(builder, parts[0], address, 0)


def split_sign(builder: Any, numbers: Any) -> tuple[Any, Any]:
    """Sign as 0 or 1, and magnitude."""
    bits = builder.bitcast(numbers, INTS)
    sign = builder.lshr(bits, ints(31))
    return sign, builder.bitcast(builder.and_(bits, ints(0x7FFFFFFF)), FLOATS)
