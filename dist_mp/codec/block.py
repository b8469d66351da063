"""Codecs of 8-bit code books: blocks of numbers, each with one FP32 scale in front of its codes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.codec.block_kernels import SCALE_BYTES, decode_blocks, encode_blocks, reduce_blocks
from dist_mp.codec.book import CodeBook
from dist_mp.codec.numbers import kernel_view

DEFAULT_BLOCK = 256
WHOLE_BLOCK = 1024
"""Numbers between two copies of the scale where one scale serves the whole array."""


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
        self._table = book.decoding_table()
        self._tables = book.rounding_tables() if stochastic else book.encoding_tables()
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
