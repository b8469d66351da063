"""The mean of encoded buffers over a communicator: pieces to their owners, FP32 sum in rank order, pieces to all.

Thakur, Rabenseifner and Gropp (2005), section 4.5, as reduce-scatter and allgather; here the reduce-scatter is an
exchange of bytes and a sum of our own, so that the sum is FP32 whatever the wire carries and its order is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.comm.transfer import MAX_BYTES, Cuts, Transfer
from dist_mp.comm.window import ALIGNMENT
from dist_mp.comm.world import World
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec
from dist_mp.exchange.stats import Stopwatch

CUT_GRAIN = 64
"""Pieces start at multiples of 64 numbers, a cache line of every type on the wire that has at least 8 bits."""

GATHER_BELOW = 16384
"""Wire bytes up to which every rank gets all buffers and sums them itself: one message time instead of two."""


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed memory that starts at a multiple of 64 bytes."""
    room = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + nbytes]


def cut_grain(codec: Codec) -> int:
    """Pieces of a buffer start at multiples of so many numbers."""
    return lcm(codec.block, CUT_GRAIN)


def numbers_within(codec: Codec, nbytes: int) -> int:
    """How many numbers fit into so many bytes, as a multiple of the grain."""
    grain = cut_grain(codec)
    return nbytes // codec.wire_bytes(grain) * grain


def piece_bounds(length: int, pieces: int, grain: int) -> list[int]:
    """Bounds of so many pieces of a buffer, at multiples of `grain`; the last pieces may be shorter or empty."""
    step = -(-length // (pieces * grain)) * grain
    return [min(i * step, length) for i in range(pieces + 1)]


@dataclass(frozen=True)
class _Round:
    """A part of a buffer that one call of MPI can move."""

    start: int
    """First byte of the part in the buffer."""
    cuts: Cuts
    first: int
    """First number of our own piece in the buffer, or of the part where all is gathered."""
    numbers: int
    """Numbers from there on that we sum."""
    gathers: bool


class PieceExchange:
    """Means of equally long encoded buffers over the ranks of a communicator."""

    def __init__(
        self,
        transfer: Transfer,
        seeded: SeededCodec,
        weights: Sequence[float],
        longest: int,
        watch: Stopwatch,
        *,
        max_bytes: int = MAX_BYTES,
        gather_below: int = GATHER_BELOW,
    ) -> None:
        """Allocate everything that a call needs.

        Args:
            transfer: moves the bytes.
            seeded: codec of the buffers.
            weights: of each rank's buffer in the mean.
            longest: numbers of the longest buffer.
            watch: counts time and bytes.
            max_bytes: longest transfer of one call; longer buffers are treated part by part, with the same result.
            gather_below: buffers up to so many bytes are gathered whole.
        """
        self._transfer, self._seeded, self._weights, self._watch = transfer, seeded, list(weights), watch
        self._codec = codec = seeded.codec
        size = transfer.size
        grain = cut_grain(codec)
        # The received pieces are as long in all as the part, since a part is a whole number of grains for each rank.
        self._step = max(1, numbers_within(codec, max_bytes) // (size * grain)) * size * grain
        self._gather_numbers = numbers_within(codec, min(gather_below, max_bytes // size))
        self._rounds: dict[int, list[_Round]] = {}
        numbers = max((r.numbers for r in self._plan(longest)), default=0)
        numbers = max(numbers, min(longest, self._gather_numbers))
        wire = codec.wire_bytes(numbers)
        self._received = aligned(wire * size)
        self._own = aligned(wire)
        self._scratch = np.empty(numbers, np.float32)

    def _plan(self, length: int) -> list[_Round]:
        if length not in self._rounds:
            size, rank, wire = self._transfer.size, self._transfer.rank, self._codec.wire_bytes
            gathers = length <= self._gather_numbers
            rounds = []
            for start in range(0, length, self._step):
                part = min(self._step, length - start)
                bounds = piece_bounds(part, size, cut_grain(self._codec))
                numbers = part if gathers else bounds[rank + 1] - bounds[rank]
                first = start if gathers else start + bounds[rank]
                rounds.append(_Round(wire(start), Cuts([wire(b) for b in bounds]), first, numbers, gathers))
            self._rounds[length] = rounds
        return self._rounds[length]

    def mean(self, buffer: Wire, out: Wire, length: int, first: int = 0) -> None:
        """Write the mean of the ranks' buffers into `out`; the same bits on every rank.

        The buffers hold `length` numbers each, which begin at number `first` of the bucket.
        """
        for part in self._plan(length):
            end = part.start + sum(part.cuts.counts)
            codec = self._seeded.final(first + part.first)
            self._mean_of_part(codec, part, buffer[part.start : end], out[part.start : end])

    def _mean_of_part(self, codec: Codec, part: _Round, buffer: Wire, out: Wire) -> None:
        transfer, watch, stats = self._transfer, self._watch, self._watch.stats
        size, cuts = transfer.size, part.cuts
        n = len(buffer) if part.gathers else cuts.counts[transfer.rank]
        wires = [self._received[r * n : (r + 1) * n] for r in range(size)]
        scratch = self._scratch[: part.numbers]
        if part.gathers:
            transfer.gather(buffer, self._received)
            watch.lap("move")
            codec.reduce(wires, self._weights, out, scratch)
            watch.lap("reduce")
            stats.network_bytes += (size - 1) * n
            return
        own = self._own[:n]
        transfer.to_owners(buffer, cuts, self._received)
        watch.lap("move")
        codec.reduce(wires, self._weights, own, scratch)
        watch.lap("reduce")
        transfer.to_all(own, cuts, out)
        watch.lap("move")
        stats.network_bytes += len(buffer) - n + (size - 1) * n


def encode_slots(codec: SeededCodec, bucket: Bucket, sources: Sequence[NDArray[Any]], wire: Wire) -> None:
    """Encode each gradient of a bucket into its slot, and zeros between the slots."""
    wire_bytes = codec.codec.wire_bytes
    ends = [slot.offset for slot in bucket.slots[1:]] + [bucket.length]
    for slot, end, source in zip(bucket.slots, ends, sources, strict=True):
        start = wire_bytes(slot.offset)
        stop = start + wire_bytes(slot.numel)
        codec.own(slot.offset).encode(source.reshape(-1), wire[start:stop])
        wire[stop : wire_bytes(end)] = 0


class PiecesMean:
    """Algorithm `pieces`: one level over all ranks, whatever node they are on."""

    def __init__(
        self, world: World, seeded: SeededCodec, longest: int, watch: Stopwatch, *, max_bytes: int, gather_below: int
    ) -> None:
        """Allocate for buckets of up to `longest` numbers."""
        self._seeded, self._codec, self._watch = seeded, seeded.codec, watch
        self._transfer = Transfer(world.comm)
        self._exchange = PieceExchange(
            self._transfer,
            seeded,
            [1 / world.size] * world.size,
            longest,
            watch,
            max_bytes=max_bytes,
            gather_below=gather_below,
        )
        self._wire, self._mean = (aligned(self._codec.wire_bytes(longest)) for _ in range(2))

    def mean(self, bucket: Bucket, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Write the mean over the ranks of a bucket's gradients into `out`."""
        nbytes = self._codec.wire_bytes(bucket.length)
        wire, mean = self._wire[:nbytes], self._mean[:nbytes]
        encode_slots(self._seeded, bucket, sources, wire)
        self._watch.lap("encode")
        self._transfer.wait()
        self._watch.lap("wait")
        self._exchange.mean(wire, mean, bucket.length)
        self._codec.decode(mean, out)
        self._watch.lap("decode")

    def close(self) -> None:
        """Nothing to free."""
