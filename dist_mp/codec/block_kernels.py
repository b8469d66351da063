"""Kernels of 8-bit code books with a scale for each block of numbers (see `dist_mp.codec.block`).

Inside they work on addresses: a slice of an array in compiled code counts its references with locked instructions,
which would cost as much as half a block's codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dist_mp.codec.base import Wire
from dist_mp.codec.decode_lanes import add_group, decode_group, pair_group
from dist_mp.codec.encode_lanes import encode_group
from dist_mp.codec.lanes import GROUP
from dist_mp.codec.numbers import bits_of, element, load_float32, of_bits, place, store_element, store_float32, widen
from dist_mp.codec.round_lanes import round_group

SCALE_BYTES = 4
NOT_FINITE = 0x7F800000
"""Bits of magnitudes from here on are infinity and NaN."""
NAN = 0x7FC00000
SMALLEST_SCALE = 0x00800000
"""Bits of 2**-126. Scales are not denormal, for threads may run with denormal numbers taken as zero."""


@njit(nogil=True, cache=True)
def largest_bits(values: np.uint64, like: Any, n: int) -> int:
    """Bits of the largest magnitude as float32; a NaN counts as larger than infinity."""
    largest = np.uint32(0)
    for i in range(n):
        largest = max(largest, np.uint32(bits_of(widen(element(values, i, like))) & np.uint32(0x7FFFFFFF)))
    return int(largest)


@njit(nogil=True, cache=True)
def scale_of(largest: int, exponent: int) -> np.float32:
    """The scale for numbers up to a magnitude of these bits (see CodeBook.exponent, 0 for None); NaN if not finite."""
    if largest >= NOT_FINITE:
        return of_bits(np.uint32(NAN))
    if exponent != 0:
        # 1.75 has the fraction 0x600000: what lies above it takes the next power of two.
        largest = ((largest + 0x1FFFFF) & NOT_FINITE) - (exponent << 23)
    return of_bits(np.uint32(max(largest, SMALLEST_SCALE)))


@njit(nogil=True, cache=True)
def scale_for(values: np.uint64, like: Any, n: int, exponent: int, top: np.float32 | None) -> np.float32:
    """The scale of these numbers. Where only positive codes have the maximum, it takes the sign of the largest."""
    largest = largest_bits(values, like, n)
    scale = scale_of(largest, exponent)
    if top is not None:
        highest = np.int32(0)
        for i in range(n):
            highest = max(highest, np.int32(bits_of(widen(element(values, i, like)))))
        if highest != largest and scale == scale:
            scale = -scale
    return scale


@njit(nogil=True, cache=True)
def encode_block(
    values: np.uint64,
    like: Any,
    n: int,
    wire: np.uint64,
    scale: np.float32,
    tables: np.uint64,
    kind: Any,
    top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
) -> None:
    """Write the scale and then the codes; all codes are 0 if the scale is NaN, so that all numbers come out as NaN.

    The codes are the nearest if `seed` is None; otherwise they are rounded at random, and `position` is the place of
    the first number in its buffer.
    """
    store_float32(wire, scale)
    codes = wire + np.uint64(SCALE_BYTES)
    if scale != scale:
        for i in range(n):
            store_element(codes, i, np.uint8(0))
        return
    full = n - n % GROUP
    for i in range(0, full, GROUP):
        at, to = place(values, i, like), codes + np.uint64(i)
        encode_64(at, like, to, scale, tables, kind, top, seed, position + i)
    if full < n:
        at, to = place(values, full, like), codes + np.uint64(full)
        encode_rest(at, like, n - full, to, scale, tables, kind, top, seed, position + full)


@njit(nogil=True, cache=True)
def encode_64(
    values: np.uint64,
    like: Any,
    codes: np.uint64,
    scale: np.float32,
    tables: np.uint64,
    kind: Any,
    top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
) -> None:
    """Write the codes of 64 numbers."""
    if seed is None:
        encode_group(values, like, codes, scale, tables, kind, top)
    else:
        round_group(values, like, codes, scale, tables, top, seed, np.uint32(position))


@njit(nogil=True, cache=True)
def encode_rest(
    values: np.uint64,
    like: Any,
    n: int,
    codes: np.uint64,
    scale: np.float32,
    tables: np.uint64,
    kind: Any,
    top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
) -> None:
    """Write the codes of fewer than 64 numbers."""
    numbers, result = np.zeros(GROUP, np.float32), np.empty(GROUP, np.uint8)
    for i in range(n):
        numbers[i] = widen(element(values, i, like))
    at, to = np.uint64(numbers.ctypes.data), np.uint64(result.ctypes.data)
    encode_64(at, np.float32(0), to, scale, tables, kind, top, seed, position)
    for i in range(n):
        store_element(codes, i, result[i])


@njit(nogil=True, cache=True)
def encode_blocks(
    values: NDArray[Any],
    wire: Wire,
    block: int,
    whole: bool,
    exponent: int,
    tables: NDArray[Any],
    top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
) -> None:
    """Encode block by block, each with its own scale, or all with that of the largest number if `whole`."""
    n, like, kind = values.size, values.dtype.type(0), tables.dtype.type(0)
    source, target, table = np.uint64(values.ctypes.data), np.uint64(wire.ctypes.data), np.uint64(tables.ctypes.data)
    stride, step = np.uint64(block + SCALE_BYTES), np.uint64(block * values.itemsize)
    # The scale of the next block is found before this one is encoded, so that the processor works on both at a time.
    following = scale_for(source, like, n if whole else min(block, n), exponent, top)
    for k in range(-(-n // block)):
        size, scale = min(block, n - k * block), following
        if not whole:
            following = scale_for(source + step, like, max(min(block, n - (k + 1) * block), 0), exponent, top)
        encode_block(source, like, size, target, scale, table, kind, top, seed, position + k * block)
        source += step
        target += stride


@njit(nogil=True, cache=True)
def decode_block(
    wire: np.uint64, out: np.uint64, n: int, weight: np.float32, add: bool, book: np.uint64, top: np.float32 | None
) -> None:
    """Write or add ``value * (scale * weight)`` for each of n numbers of the block at address `wire`."""
    factor = load_float32(wire) * weight
    source = wire + np.uint64(SCALE_BYTES)
    full = n - n % GROUP
    if add:
        for i in range(0, full, GROUP):
            add_group(source + np.uint64(i), out + np.uint64(4 * i), factor, book, top)
    else:
        for i in range(0, full, GROUP):
            decode_group(source + np.uint64(i), out + np.uint64(4 * i), factor, book, top)
    if full < n:
        decode_rest(source + np.uint64(full), out + np.uint64(4 * full), n - full, factor, add, book, top)


@njit(nogil=True, cache=True)
def decode_rest(
    codes: np.uint64, out: np.uint64, n: int, factor: np.float32, add: bool, book: np.uint64, top: np.float32 | None
) -> None:
    """Write or add fewer than 64 numbers."""
    padded, numbers = np.zeros(GROUP, np.uint8), np.empty(GROUP, np.float32)
    for i in range(n):
        padded[i] = element(codes, i, np.uint8(0))
    decode_group(np.uint64(padded.ctypes.data), np.uint64(numbers.ctypes.data), factor, book, top)
    for i in range(n):
        before = element(out, i, np.float32(0)) if add else np.float32(0)
        store_element(out, i, before + numbers[i] if add else numbers[i])


@njit(nogil=True, cache=True)
def decode_pair(
    first: np.uint64,
    second: np.uint64,
    out: np.uint64,
    n: int,
    w_first: np.float32,
    w_second: np.float32,
    book: np.uint64,
    top: np.float32 | None,
) -> None:
    """Write the weighted sum of two blocks of a multiple of 64 numbers."""
    one, two = load_float32(first) * w_first, load_float32(second) * w_second
    header = np.uint64(SCALE_BYTES)
    for i in range(0, n, GROUP):
        at = header + np.uint64(i)
        pair_group(first + at, second + at, out + np.uint64(4 * i), one, two, book, top)


@njit(nogil=True, cache=True)
def decode_blocks(
    wire: np.uint64,
    out: NDArray[np.float32],
    weight: np.float32,
    block: int,
    book: NDArray[np.float32],
    top: np.float32 | None,
) -> None:
    """Decode all blocks of the wire at an address."""
    table, target = np.uint64(book.ctypes.data), np.uint64(out.ctypes.data)
    for k in range(-(-out.size // block)):
        size = min(block, out.size - k * block)
        decode_block(wire, target, size, weight, False, table, top)
        wire += np.uint64(block + SCALE_BYTES)
        target += np.uint64(4 * block)


@njit(nogil=True, cache=True)
def sum_block(
    wires: NDArray[np.uint64],
    weights: NDArray[np.float32],
    start: np.uint64,
    total: np.uint64,
    n: int,
    book: np.uint64,
    top: np.float32 | None,
) -> None:
    """Write the weighted sum of the blocks `start` bytes behind these addresses, n numbers."""
    if wires.size == 2 and n % GROUP == 0:
        decode_pair(wires[0] + start, wires[1] + start, total, n, weights[0], weights[1], book, top)
    else:
        for r in range(wires.size):
            decode_block(wires[r] + start, total, n, weights[r], r > 0, book, top)


@njit(nogil=True, cache=True)
def reduce_blocks(
    wires: NDArray[np.uint64],
    weights: NDArray[np.float32],
    out: Wire,
    scratch: NDArray[np.float32],
    block: int,
    whole: bool,
    exponent: int,
    tables: NDArray[Any],
    bound_of_top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
    book: NDArray[np.float32],
    top: np.float32 | None,
) -> None:
    """Encode the weighted sum of the wires at these addresses, as many numbers as `scratch` has.

    A block is decoded, summed and encoded while it is in the first-level cache, one block ahead of the encoding.
    """
    n, kind, like = scratch.size, tables.dtype.type(0), np.float32(0)
    at, table = np.uint64(tables.ctypes.data), np.uint64(book.ctypes.data)
    first, target = np.uint64(scratch.ctypes.data), np.uint64(out.ctypes.data)
    num_blocks, stride, step = -(-n // block), np.uint64(block + SCALE_BYTES), np.uint64(4 * block)
    following, start, total, size = np.float32(0), np.uint64(0), first, 0
    for k in range(num_blocks + 1):
        scale, before, length = following, total, size
        if k < num_blocks:
            size = min(block, n - k * block)
            total = first + step * np.uint64(k if whole else k % 2)
            sum_block(wires, weights, start, total, size, table, top)
            if not whole:
                following = scale_for(total, like, size, exponent, bound_of_top)
            start += stride
        if k > 0 and not whole:
            where = position + (k - 1) * block
            encode_block(before, like, length, target, scale, at, kind, bound_of_top, seed, where)
            target += stride
    if whole:
        encode_blocks(scratch, out, block, True, exponent, tables, bound_of_top, seed, position)
