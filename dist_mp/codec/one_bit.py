"""One bit a number: its sign, with the means of the negative and of the other numbers of a block.

Seide et al., '1-Bit Stochastic Gradient Descent' (2014), section 3. It needs error feedback (`dist_mp.codec.feedback`)
to train; it is here for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.codec.numbers import kernel_view, load_float32, load_int32, store_float32, store_int32, widen

HEADER = 12
"""Bytes before the bits of a block: its count of numbers (int32), the mean of those that are negative and that of the
others (float32)."""
LANES = 16


@njit(nogil=True, cache=True)
def encode_block(values: NDArray[Any], wire: Wire, n: int) -> None:
    """Encode one block, of which the first n numbers are there; what comes after them is not encoded.

    The means are sums in float64 over 16 lanes, number i in lane i % 16, that are added from the first lane to the
    last: an order that is fast and the same everywhere.
    """
    below, above = np.zeros(LANES), np.zeros(LANES)
    negative = 0
    for start in range(0, n, LANES):
        for lane in range(min(LANES, n - start)):
            x = np.float64(widen(values[start + lane]))
            below[lane] += x if x < 0 else 0.0
            above[lane] += 0.0 if x < 0 else x
            negative += 1 if x < 0 else 0
    low, high = 0.0, 0.0
    for lane in range(LANES):
        low += below[lane]
        high += above[lane]
    at = np.uint64(wire.ctypes.data)
    store_int32(at, np.int32(n))
    store_float32(at + np.uint64(4), np.float32(low / max(negative, 1)))
    store_float32(at + np.uint64(8), np.float32(high / max(n - negative, 1)))
    bits = wire[HEADER:]
    for k in range(bits.size):
        byte = np.uint8(0)
        for bit in range(min(8, n - 8 * k)):
            byte |= np.uint8(widen(values[8 * k + bit]) < 0) << np.uint8(bit)
        bits[k] = byte


@njit(nogil=True, cache=True)
def encode_blocks(values: NDArray[Any], wire: Wire, block: int) -> None:
    """Encode all blocks."""
    stride = HEADER + block // 8
    for k in range(-(-values.size // block)):
        part = values[k * block : (k + 1) * block]
        encode_block(part, wire[k * stride : k * stride + HEADER + (part.size + 7) // 8], part.size)


@njit(nogil=True, cache=True)
def decode_block(wire: Wire, out: NDArray[np.float32], weight: np.float32, add: bool) -> int:
    """Write or add the weighted means by sign, and 0 beyond the count, which is returned."""
    at = np.uint64(wire.ctypes.data)
    n = min(load_int32(at), out.size)
    low, high = load_float32(at + np.uint64(4)) * weight, load_float32(at + np.uint64(8)) * weight
    bits = wire[HEADER:]
    for i in range(n):
        value = low if bits[i >> 3] >> (i & 7) & 1 else high
        out[i] = out[i] + value if add else value
    if not add:
        out[n:] = 0
    return n


@njit(nogil=True, cache=True)
def decode_blocks(wire: Wire, out: NDArray[np.float32], weight: np.float32, block: int) -> None:
    """Decode all blocks."""
    stride = HEADER + block // 8
    for k in range(-(-out.size // block)):
        decode_block(wire[k * stride : (k + 1) * stride], out[k * block : (k + 1) * block], weight, False)


@njit(nogil=True, cache=True)
def add_blocks(
    wire: Wire, total: NDArray[np.float32], weight: np.float32, block: int, add: bool, counts: NDArray[np.int32]
) -> None:
    """Write or add all blocks; keep the largest count of each."""
    stride = HEADER + block // 8
    for k in range(counts.size):
        n = decode_block(wire[k * stride : (k + 1) * stride], total[k * block : (k + 1) * block], weight, add)
        counts[k] = max(counts[k], n)


@njit(nogil=True, cache=True)
def encode_totals(total: NDArray[np.float32], out: Wire, block: int, counts: NDArray[np.int32]) -> None:
    """Encode all blocks as far as their counts."""
    stride = HEADER + block // 8
    for k in range(counts.size):
        part = total[k * block : (k + 1) * block]
        encode_block(part, out[k * stride : k * stride + HEADER + (part.size + 7) // 8], counts[k])


class OneBitCodec(Codec):
    """The sign of each number and two means a block.

    The wire of a block is its count, two means and a bit for each number; bytes of zeros are numbers of 0. A block
    with an infinity or NaN comes out with a mean that is not finite, in all numbers of that sign (NaN counts as
    positive). Zeros do not stay zeros, unless all numbers of the block that are not negative are 0.
    """

    def __init__(self, block: int) -> None:
        """Take the numbers that share the means: a multiple of 8."""
        self.name = "one_bit"
        self.block = block

    def wire_bytes(self, n: int) -> int:
        """Bytes on the wire for n numbers."""
        return HEADER * -(-n // self.block) + n // self.block * (self.block // 8) + (n % self.block + 7) // 8

    def encode(self, values: NDArray[Any], wire: Wire) -> None:
        """Write counts, means and signs."""
        encode_blocks(kernel_view(values), wire, self.block)

    def decode(self, wire: Wire, out: NDArray[np.float32], scale: float = 1.0) -> None:
        """Write the mean of each number's sign, times `scale`."""
        decode_blocks(wire, out, np.float32(scale), self.block)

    def reduce(self, wires: Sequence[Wire], weights: Sequence[float], out: Wire, scratch: NDArray[np.float32]) -> None:
        """Sum in FP32 in the order of the wires, then encode with new means."""
        counts = np.zeros(-(-len(scratch) // self.block), np.int32)
        for r, (wire, weight) in enumerate(zip(wires, weights, strict=True)):
            add_blocks(wire, scratch, np.float32(weight), self.block, r > 0, counts)
        encode_totals(scratch, out, self.block, counts)
