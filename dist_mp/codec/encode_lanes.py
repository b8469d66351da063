"""Encoding to the nearest code of an 8-bit code book, 64 numbers a call (see `dist_mp.codec.lanes`).

Where the machine can permute bytes (AVX512-VBMI), a number's exponent and first bits of mantissa, its key, choose one
of up to 768 bytes: the code of the numbers where the key begins, and whether the next code begins within the key. If
it does, 16 further bits of the number and of that bound decide; should they be equal, the 64 numbers are searched bit
by bit as elsewhere. So the codes are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dist_mp.codec.lanes import (
    GROUP,
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    Search,
    call,
    ints,
    load,
    load_numbers,
    permutes_bytes,
    splat,
    split_sign,
    store,
    store_bytes,
)

KEYED = types.uint32
"""Type of the tables of a book that has keys (see `CodeBook.encoding_tables`)."""
KEY_BYTES = 768
BOUNDS_BYTES = 4 * 176
HEADER_BYTES = 64
WORDS, ALL_BYTES = ir.VectorType(I16, 2 * LANES), ir.VectorType(I8, GROUP)
BITS32, BITS64 = ir.VectorType(ir.IntType(1), 2 * LANES), ir.VectorType(ir.IntType(1), GROUP)


@intrinsic
def encode_group(
    typing: Any,
    values: types.Type,
    like: types.Type,
    wire: types.Type,
    scale: types.Type,
    tables: types.Type,
    kind: types.Type,
    top: types.Type,
) -> tuple[Any, Callable[..., Any]]:
    """Write the codes of 64 numbers of the type of `like`, divided by `scale`, to the nearest.

    `values`, `wire` and `tables` are addresses; `kind` has the type of the tables' numbers; `top` is None or the bound
    of the book's `top`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, _, wire, scale, tables, _, top_bound = args
        divisor = splat(builder, scale)
        numbers = [builder.fdiv(load_numbers(builder, values, g, like), divisor) for g in range(GROUP // LANES)]
        if kind == KEYED and permutes_bytes(context):
            codes, undecided = _codes_by_key(builder, tables, numbers)
            store(builder, codes, wire, 0)
            with builder.if_then(undecided, likely=False):
                _search_all(context, builder, numbers, wire, tables, None)
        else:
            bound = None if top == types.none else splat(builder, top_bound)
            _search_all(context, builder, numbers, wire, tables, bound)
        return context.get_dummy_value()

    return types.void(types.uint64, like, types.uint64, types.float32, types.uint64, kind, top), generate


def _search_all(context: Any, builder: Any, numbers: Sequence[Any], wire: Any, tables: Any, top_bound: Any) -> None:
    """Search bit by bit, and write the codes."""
    search = Search(builder, context, tables)
    codes = []
    for number in numbers:
        sign, magnitude = split_sign(builder, number)
        code = search(magnitude, sign)
        if top_bound is not None:
            reaches = builder.fcmp_ordered(">=", magnitude, top_bound)
            positive = builder.icmp_signed("==", sign, ints(0))
            code = builder.select(builder.icmp_signed("==", code, ints(128)), ints(0), code)
            code = builder.select(builder.and_(reaches, positive), ints(128), code)
        codes.append(code)
    store_bytes(builder, codes, wire)


def _codes_by_key(builder: Any, tables: Any, numbers: Sequence[Any]) -> tuple[Any, Any]:
    """The codes of 64 numbers as bytes, and whether any of them was left undecided."""
    shift, first, last, rest = (_parameter(builder, tables, i) for i in range(4))
    bits = [builder.bitcast(number, INTS) for number in numbers]
    magnitudes = [builder.and_(b, ints(0x7FFFFFFF)) for b in bits]
    keys = [builder.lshr(m, splat(builder, shift)) for m in magnitudes]
    rests = [builder.lshr(m, splat(builder, rest)) for m in magnitudes]
    key_words = []
    for pair in (keys[:2], keys[2:]):
        words = builder.sub(_even(builder, WORDS, *pair), _splat_word(builder, first))
        words = call(builder, "llvm.smax.v32i16", WORDS, [words, ir.Constant(WORDS, [0] * 32)])
        key_words.append(call(builder, "llvm.smin.v32i16", WORDS, [words, _splat_word(builder, last)]))
    found = _by_key(builder, tables, _even(builder, ALL_BYTES, *key_words), _odd(builder, *key_words))
    codes, undecided = [], []
    for half, pair in enumerate((rests[:2], rests[2:])):
        order = ir.Constant(ir.VectorType(I32, 32), list(range(32 * half, 32 * half + 32)))
        entry = builder.zext(builder.shuffle_vector(found, ir.Constant(ALL_BYTES, ir.Undefined), order), WORDS)
        within = builder.icmp_signed("!=", builder.and_(entry, _word(0x80)), _word(0))
        code = builder.and_(entry, _word(0x7F))
        bound, own = _bound(builder, tables, code), _even(builder, WORDS, *pair)
        up = builder.and_(within, builder.icmp_unsigned(">", own, bound))
        undecided.append(builder.and_(within, builder.icmp_unsigned("==", own, bound)))
        codes.append(builder.add(code, builder.zext(up, WORDS)))
    packed = _even(builder, ALL_BYTES, *codes)
    signs = _concatenated(builder, [builder.icmp_signed("<", b, ints(0)) for b in bits])
    high = ir.Constant(ALL_BYTES, [-128] * GROUP)
    packed = builder.select(signs, builder.or_(packed, high), packed)
    any_left = builder.bitcast(builder.or_(*undecided), I32)
    return packed, builder.icmp_unsigned("!=", any_left, ir.Constant(I32, 0))


def _by_key(builder: Any, tables: Any, low: Any, high: Any) -> Any:
    """Entries of the key table by the low and high bytes of the keys."""
    upper = builder.icmp_signed("<", low, ir.Constant(ALL_BYTES, [0] * GROUP))
    found = None
    for row in range(KEY_BYTES // 256):
        rows = [load(builder, tables, BOUNDS_BYTES + HEADER_BYTES + 256 * row + 64 * i, ALL_BYTES) for i in range(4)]
        halves = [
            call(builder, "llvm.x86.avx512.vpermi2var.qi.512", ALL_BYTES, [rows[i], low, rows[i + 1]]) for i in (0, 2)
        ]
        entry = builder.select(upper, halves[1], halves[0])
        here = builder.icmp_signed("==", high, ir.Constant(ALL_BYTES, [row] * GROUP))
        found = entry if found is None else builder.select(here, entry, found)
    return found


def _bound(builder: Any, tables: Any, code: Any) -> Any:
    """The 16 bits of the bound above each code."""
    at = BOUNDS_BYTES + HEADER_BYTES + KEY_BYTES
    rows = [load(builder, tables, at + 64 * i, WORDS) for i in range(4)]
    halves = [call(builder, "llvm.x86.avx512.vpermi2var.hi.512", WORDS, [rows[i], code, rows[i + 1]]) for i in (0, 2)]
    upper = builder.icmp_signed("!=", builder.and_(code, _word(64)), _word(0))
    return builder.select(upper, halves[1], halves[0])


def _parameter(builder: Any, tables: Any, number: int) -> Any:
    place = builder.add(tables, ir.Constant(I64, BOUNDS_BYTES + 4 * number))
    return builder.load(builder.inttoptr(place, I32.as_pointer()))


def _word(value: int) -> Any:
    return ir.Constant(WORDS, [value] * 32)


def _splat_word(builder: Any, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(WORDS, ir.Undefined), builder.trunc(number, I16), ir.Constant(I32, 0))
    order = ir.Constant(ir.VectorType(I32, 32), [0] * 32)
    return builder.shuffle_vector(one, ir.Constant(WORDS, ir.Undefined), order)


def _even(builder: Any, kind: Any, one: Any, two: Any) -> Any:
    """The low halves of the numbers of two vectors."""
    order = ir.Constant(ir.VectorType(I32, kind.count), [2 * i for i in range(kind.count)])
    return builder.shuffle_vector(builder.bitcast(one, kind), builder.bitcast(two, kind), order)


def _odd(builder: Any, one: Any, two: Any) -> Any:
    """The high bytes of the words of two vectors."""
    order = ir.Constant(ir.VectorType(I32, GROUP), [2 * i + 1 for i in range(GROUP)])
    return builder.shuffle_vector(builder.bitcast(one, ALL_BYTES), builder.bitcast(two, ALL_BYTES), order)


def _concatenated(builder: Any, parts: list[Any]) -> Any:
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        order = ir.Constant(ir.VectorType(I32, count), list(range(count)))
        parts = [builder.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
