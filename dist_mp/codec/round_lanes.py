"""Stochastic rounding to an 8-bit code book, 64 numbers a call, as vector instructions (see `dist_mp.codec.lanes`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dist_mp.codec.lanes import (
    GROUP,
    I64,
    INTS,
    LANES,
    Search,
    Table,
    ints,
    load_numbers,
    splat,
    split_sign,
    store_bytes,
)
from dist_mp.codec.rounding import emit_uniform

TABLE_OFFSET = 4 * 176
"""Bytes of the bounds, behind which the magnitudes lie, and behind those the next larger ones (128 each)."""


@intrinsic
def round_group(
    typing: Any,
    values: types.Type,
    like: types.Type,
    wire: types.Type,
    scale: types.Type,
    tables: types.Type,
    top: types.Type,
    seed: types.Type,
    position: types.Type,
) -> tuple[Any, Callable[..., Any]]:
    """Write codes of 64 numbers of the type of `like`, divided by `scale`, rounded up or down at random.

    `values`, `wire` and `tables` are addresses; `top` is not None in books that have one; `position` is the place of
    the first number in its buffer.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, _, wire, scale, tables, _, seed, position = args
        search, divisor = Search(builder, context, tables), splat(builder, scale)
        lower = Table(builder, context, tables, TABLE_OFFSET, 128)
        upper = Table(builder, context, tables, TABLE_OFFSET + 512, 128)
        codes = []
        for group in range(GROUP // LANES):
            sign, x = split_sign(builder, builder.fdiv(load_numbers(builder, values, group, like), divisor))
            negative = builder.icmp_signed("!=", sign, ints(0))
            if top != types.none:
                last = builder.load(
                    builder.inttoptr(
                        builder.add(tables, ir.Constant(I64, TABLE_OFFSET + 4 * 127)), ir.FloatType().as_pointer()
                    )
                )
                last = splat(builder, last)
                beyond = builder.and_(negative, builder.fcmp_ordered(">", x, last))
                x = builder.select(beyond, last, x)
            found = search(x, sign)
            low, high = lower(found), upper(found)
            step = builder.fmul(emit_uniform(builder, seed, position, group), builder.fsub(high, low))
            up = builder.fcmp_ordered("<", step, builder.fsub(x, low))
            code = builder.add(found, builder.zext(up, INTS))
            if top != types.none:
                minus_zero = builder.icmp_signed("==", found, ints(128))
                down = builder.icmp_signed("==", code, found)
                code = builder.select(builder.and_(minus_zero, down), ints(0), code)
            codes.append(code)
        store_bytes(builder, codes, wire)
        return context.get_dummy_value()

    signature = types.void(
        types.uint64, like, types.uint64, types.float32, types.uint64, top, types.uint64, types.uint32
    )
    return signature, generate
