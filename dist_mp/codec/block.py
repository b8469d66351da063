"""Codecs of 8-bit code books: blocks of numbers, each with one FP32 scale in front of its codes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.codec.book import CodeBook
from dist_mp.codec.lanes import GROUP, add_group, decode_group, encode_group, pair_group
from dist_mp.codec.numbers import bits_of, element, kernel_view, load_float32, of_bits, store_float32, widen
from dist_mp.codec.round_lanes import round_group

DEFAULT_BLOCK = 256
WHOLE_BLOCK = 1024
"""Numbers between two copies of the scale where one scale serves the whole array."""

SCALE_BYTES = 4
NOT_FINITE = 0x7F800000
"""Bits of magnitudes from here on are infinity and NaN."""
NAN = 0x7FC00000
SMALLEST_SCALE = 0x00800000
"""Bits of 2**-126. Scales are not denormal, for threads may run with denormal numbers taken as zero."""


@njit(nogil=True, cache=True)
def largest_bits(values: NDArray[Any]) -> int:
    """Bits of the largest magnitude as float32; a NaN counts as larger than infinity."""
    largest = np.uint32(0)
    for i in range(values.size):
        largest = max(largest, np.uint32(bits_of(widen(values[i])) & np.uint32(0x7FFFFFFF)))
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
def scale_for(values: NDArray[Any], exponent: int, top: np.float32 | None) -> np.float32:
    """The scale of these numbers. Where only positive codes have the maximum, it takes the sign of the largest."""
    largest = largest_bits(values)
    scale = scale_of(largest, exponent)
    if top is not None:
        highest = np.int32(0)
        for i in range(values.size):
            highest = max(highest, np.int32(bits_of(widen(values[i]))))
        if highest != largest and scale == scale:
            scale = -scale
    return scale


@njit(nogil=True, cache=True)
def encode_block(
    values: NDArray[Any],
    wire: Wire,
    scale: np.float32,
    tables: np.uint64,
    top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
) -> None:
    """Write the scale and then the codes; all codes are 0 if the scale is NaN, so that all numbers come out as NaN.

    The codes are the nearest if `seed` is None; otherwise they are rounded at random, and `position` is the place of
    the first number in its buffer.
    """
    store_float32(np.uint64(wire.ctypes.data), scale)
    codes = wire[SCALE_BYTES:]
    if scale != scale:
        codes[:] = 0
        return
    n, like = values.size, values.dtype.type(0)
    source, target = np.uint64(values.ctypes.data), np.uint64(codes.ctypes.data)
    full = n - n % GROUP
    for i in range(0, full, GROUP):
        at, to = source + np.uint64(i * values.itemsize), target + np.uint64(i)
        if seed is None:
            encode_group(at, like, to, scale, tables, top)
        else:
            round_group(at, like, to, scale, tables, top, seed, np.uint32(position + i))
    if full < n:
        rest, last = np.zeros(GROUP, values.dtype), np.empty(GROUP, np.uint8)
        rest[: n - full] = values[full:]
        at, to = np.uint64(rest.ctypes.data), np.uint64(last.ctypes.data)
        if seed is None:
            encode_group(at, like, to, scale, tables, top)
        else:
            round_group(at, like, to, scale, tables, top, seed, np.uint32(position + full))
        codes[full:] = last[: n - full]


@njit(nogil=True, cache=True)
def encode_blocks(
    values: NDArray[Any],
    wire: Wire,
    block: int,
    whole: bool,
    exponent: int,
    tables: NDArray[np.int32],
    top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
) -> None:
    """Encode block by block, each with its own scale, or all with that of the largest number if `whole`."""
    n, stride, at = values.size, block + SCALE_BYTES, np.uint64(tables.ctypes.data)
    scale = scale_for(values, exponent, top) if whole else np.float32(0)
    for k in range(-(-n // block)):
        part = values[k * block : (k + 1) * block]
        if not whole:
            scale = scale_for(part, exponent, top)
        out = wire[k * stride : k * stride + SCALE_BYTES + part.size]
        encode_block(part, out, scale, at, top, seed, position + k * block)


@njit(nogil=True, cache=True)
def decode_block(
    wire: np.uint64, out: NDArray[np.float32], weight: np.float32, add: bool, book: np.uint64, top: np.float32 | None
) -> None:
    """Write or add ``value * (scale * weight)`` for each number of the block at address `wire`."""
    factor = load_float32(wire) * weight
    source, target = wire + np.uint64(SCALE_BYTES), np.uint64(out.ctypes.data)
    n = out.size
    full = n - n % GROUP
    if add:
        for i in range(0, full, GROUP):
            add_group(source + np.uint64(i), target + np.uint64(4 * i), factor, book, top)
    else:
        for i in range(0, full, GROUP):
            decode_group(source + np.uint64(i), target + np.uint64(4 * i), factor, book, top)
    if full < n:
        codes, last = np.zeros(GROUP, np.uint8), np.empty(GROUP, np.float32)
        codes[: n - full] = bytes_at(source + np.uint64(full), n - full)
        decode_group(np.uint64(codes.ctypes.data), np.uint64(last.ctypes.data), factor, book, top)
        for i in range(full, n):
            out[i] = out[i] + last[i - full] if add else last[i - full]


@njit(nogil=True, cache=True)
def decode_pair(
    first: np.uint64,
    second: np.uint64,
    out: NDArray[np.float32],
    w_first: np.float32,
    w_second: np.float32,
    book: np.uint64,
    top: np.float32 | None,
) -> None:
    """Write the weighted sum of two blocks of a multiple of 64 numbers."""
    one, two = load_float32(first) * w_first, load_float32(second) * w_second
    header, target = np.uint64(SCALE_BYTES), np.uint64(out.ctypes.data)
    for i in range(0, out.size, GROUP):
        at = header + np.uint64(i)
        pair_group(first + at, second + at, target + np.uint64(4 * i), one, two, book, top)


@njit(nogil=True, cache=True)
def bytes_at(address: np.uint64, n: int) -> Wire:
    """A copy of n bytes."""
    out = np.empty(n, np.uint8)
    for i in range(n):
        out[i] = element(address, i, np.uint8(0))
    return out


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
    table = np.uint64(book.ctypes.data)
    for k in range(-(-out.size // block)):
        at = wire + np.uint64(k * (block + SCALE_BYTES))
        decode_block(at, out[k * block : (k + 1) * block], weight, False, table, top)


@njit(nogil=True, cache=True)
def reduce_blocks(
    wires: NDArray[np.uint64],
    weights: NDArray[np.float32],
    out: Wire,
    scratch: NDArray[np.float32],
    block: int,
    whole: bool,
    exponent: int,
    tables: NDArray[np.int32],
    bound_of_top: np.float32 | None,
    seed: np.uint64 | None,
    position: int,
    book: NDArray[np.float32],
    top: np.float32 | None,
) -> None:
    """Encode the weighted sum of the wires at these addresses, as many numbers as `scratch` has.

    A block is decoded, summed and encoded while it is in the first-level cache.
    """
    n, stride = scratch.size, block + SCALE_BYTES
    at, table = np.uint64(tables.ctypes.data), np.uint64(book.ctypes.data)
    for k in range(-(-n // block)):
        size = min(block, n - k * block)
        total = scratch[k * block : k * block + size] if whole else scratch[:size]
        at_wire = np.uint64(k * stride)
        if wires.size == 2 and size % GROUP == 0:
            decode_pair(wires[0] + at_wire, wires[1] + at_wire, total, weights[0], weights[1], table, top)
        else:
            for r in range(wires.size):
                decode_block(wires[r] + at_wire, total, weights[r], r > 0, table, top)
        if not whole:
            scale = scale_for(total, exponent, bound_of_top)
            part = out[k * stride : k * stride + SCALE_BYTES + size]
            encode_block(total, part, scale, at, bound_of_top, seed, position + k * block)
    if whole:
        encode_blocks(scratch, out, block, True, exponent, tables, bound_of_top, seed, position)


class BlockCodec(Codec):
    """An 8-bit code book with one FP32 scale for each block of numbers.

    The wire of a block is its scale, 4 bytes, and one byte for each number, also where the last block is shorter. A
    block that holds an infinity or NaN comes out as NaN throughout. Otherwise its largest magnitude comes out exactly,
    but for books whose scale is a power of two; there whatever the book can express does. So what was decoded once is
    encoded without a further error. Scales are at least 2**-126, so that numbers below that become coarser, or zero.
    """

    def __init__(self, name: str, book: CodeBook, block: int = DEFAULT_BLOCK, *, stochastic: bool = False) -> None:
        """Prepare the tables.

        Args:
            name: of the codec.
            book: the magnitudes and their scale.
            block: numbers that share a scale; multiples of 64 are fast. 0: all numbers of one call do (in a sum, those
                of the piece that is summed), and each 1024 of them carry a copy of it, so that the buffer can be cut.
            stochastic: round up or down at random, right in the mean, by the numbers of :meth:`seeded`.
        """
        self.name = name
        self.book = book
        self.block = block or WHOLE_BLOCK
        self.whole = block == 0
        self.stochastic = stochastic
        self._exponent = book.exponent or 0
        self._table = book.table()
        self._tables = book.rounding_tables() if stochastic else book.tiled_bounds()
        self.seed: int | None = 0 if stochastic else None
        """Of the random numbers; None where rounding is to nearest."""
        self.start = 0
        """Place in the buffer of the first number that is encoded."""
        self._top = None if book.top is None else np.float32(book.top)
        self._bound_of_top = None if book.top is None else book.bounds[-1]

    def seeded(self, seed: int, start: int = 0) -> BlockCodec:
        """The codec with other random numbers, if it rounds at random; otherwise itself."""
        if self.seed is None:
            return self
        other = copy(self)
        other.seed, other.start = seed, start
        return other

    def wire_bytes(self, n: int) -> int:
        """Bytes on the wire for n numbers."""
        return n + SCALE_BYTES * -(-n // self.block)

    def encode(self, values: NDArray[Any], wire: Wire) -> None:
        """Write the scales and codes."""
        encode_blocks(
            kernel_view(values),
            wire,
            self.block,
            self.whole,
            self._exponent,
            self._tables,
            self._bound_of_top,
            None if self.seed is None else np.uint64(self.seed),
            self.start,
        )

    def decode(self, wire: Wire, out: NDArray[np.float32], scale: float = 1.0) -> None:
        """Write what each code stands for, times its block's scale times `scale`, which are multiplied first."""
        decode_blocks(np.uint64(wire.ctypes.data), out, np.float32(scale), self.block, self._table, self._top)

    def reduce(self, wires: Sequence[Wire], weights: Sequence[float], out: Wire, scratch: NDArray[np.float32]) -> None:
        """Sum in FP32 in the order of the wires, then encode with new scales."""
        reduce_blocks(
            np.array([w.ctypes.data for w in wires], np.uint64),
            np.array(weights, np.float32),
            out,
            scratch,
            self.block,
            self.whole,
            self._exponent,
            self._tables,
            self._bound_of_top,
            None if self.seed is None else np.uint64(self.seed),
            self.start,
            self._table,
            self._top,
        )
