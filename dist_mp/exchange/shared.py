"""Algorithm `shared`: shared memory within a node, pieces between nodes.

A large bucket is treated part by part, so that it needs little shared memory. Every rank encodes a part into its
segment of shared memory. After a barrier local rank k sums piece k of the part from the segments of its node. It
exchanges the node's mean of piece k with the local ranks k of the other nodes only, so that each node sends its
numbers once however many ranks it has. After the next barrier every rank decodes all pieces from the segments of its
node; by then it has encoded the next part, so that there is one barrier for each part and one at the end.

Between the nodes travels the node's mean, never its sum: a sum could overflow 16 bits. Means are weighted by the
number of ranks on their node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Wire
from dist_mp.comm.transfer import Transfer
from dist_mp.comm.window import SharedWindow, round_up
from dist_mp.comm.world import World
from dist_mp.exchange.pieces import PieceExchange, aligned, cut_grain, encode_slots, numbers_within, piece_bounds
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec
from dist_mp.exchange.stats import Stopwatch

PART_NUMBERS = 1 << 19
"""Numbers of a part, so that few MiB of shared memory serve buckets of any size, and stay in the caches
(docs/decisions.md has times). Several nodes take a bucket as one part, so that there are few messages."""


@dataclass(frozen=True)
class _Source:
    """A stretch of one gradient that is encoded by one call."""

    number: int
    """Of the slot in its bucket."""
    numbers: slice
    first: int
    """First number of the stretch in the bucket."""
    wire: slice
    gap: slice
    """Bytes up to the next stretch, which are 0."""


@dataclass(frozen=True)
class _Part:
    """Consecutive numbers of a bucket that go through the phases together."""

    sources: list[_Source]
    own: slice
    """Bytes of our own piece."""
    first: int
    """First number of our own piece in the bucket."""
    numbers: int
    """Of our own piece; 0 if we own none."""
    pieces: list[tuple[int, slice]]
    """Of each owner: bytes of the piece, and its numbers in the bucket."""


class SharedMean:
    """Means of buckets over all ranks, on one node or many, with one rank a node or more."""

    def __init__(
        self,
        world: World,
        seeded: SeededCodec,
        longest: int,
        watch: Stopwatch,
        *,
        max_bytes: int,
        gather_below: int,
        part_numbers: int = PART_NUMBERS,
    ) -> None:
        """Allocate for buckets of up to `longest` numbers. Collective."""
        self._seeded, self._codec, self._watch = seeded, seeded.codec, watch
        codec = seeded.codec
        self._local_rank, self._num_nodes = world.local_rank, world.num_nodes
        # A piece needs an owner on every node, so the smallest node decides how many there are.
        self._pieces = min(world.node_sizes)
        self._grain = cut_grain(codec)
        self._gather_numbers = numbers_within(codec, gather_below) if self._num_nodes == 1 else 0
        self._weights = [1 / world.local_size] * world.local_size
        self._step = max(longest, 1)
        if self._num_nodes == 1 and world.local_size > 1 and not codec.whole:
            self._step = max(min(part_numbers, longest) // self._grain, 1) * self._grain
        longest_piece = piece_bounds(self._step, self._pieces, self._grain)[1]
        whole = min(longest, self._gather_numbers)
        wire = round_up(codec.wire_bytes(max(min(self._step, longest), whole)))
        piece = round_up(codec.wire_bytes(longest_piece))
        self._window = SharedWindow(world, 2 * (wire + piece))
        segments = self._window.segments
        # Two buffers in turn: between two barriers a rank may be one part ahead of one that still reads.
        self._wires = [[s[i * wire : (i + 1) * wire] for s in segments] for i in range(2)]
        self._results = [[s[2 * wire + i * piece : 2 * wire + (i + 1) * piece] for s in segments] for i in range(2)]
        self._turn = 0
        self._plans: dict[Bucket, list[_Part]] = {}
        self._scratch = np.empty(max(longest_piece, whole), np.float32)
        self._whole = aligned(codec.wire_bytes(whole))
        self._cross: PieceExchange | None = None
        self._node_mean: Wire | None = None
        if self._num_nodes > 1 and self._local_rank < self._pieces:
            self._node_mean = aligned(piece)
            self._cross = PieceExchange(
                Transfer(world.cross_comm),
                seeded,
                [size / world.size for size in world.node_sizes],
                longest_piece,
                watch,
                max_bytes=max_bytes,
                gather_below=gather_below,
            )

    def mean(self, bucket: Bucket, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Write the mean over the ranks of a bucket's gradients into `out`."""
        watch = self._watch
        if bucket.length <= self._gather_numbers or len(self._weights) == self._num_nodes == 1:
            self._mean_of_all(bucket, sources, out)
        else:
            self._mean_by_pieces(bucket, sources, out)
        if len(self._weights) > 1:
            # Of the encoded gradients all but our piece, and our piece of the mean.
            watch.stats.shared_bytes += self._codec.wire_bytes(bucket.length)

    def _mean_of_all(self, bucket: Bucket, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Every rank sums everything itself, which saves the second barrier; the bits are the same."""
        codec, watch, nbytes = self._codec, self._watch, self._codec.wire_bytes(bucket.length)
        wires = [wire[:nbytes] for wire in self._wires[self._turn]]
        self._turn ^= 1
        mean = wires[self._local_rank]
        encode_slots(self._seeded, bucket, sources, mean)
        watch.lap("encode")
        self._window.wait()
        watch.lap("wait")
        if len(wires) > 1:
            mean = self._whole[:nbytes]
            self._seeded.final(0).reduce(wires, self._weights, mean, self._scratch[: len(out)])
            watch.lap("reduce")
        codec.decode(mean, out)
        watch.lap("decode")

    def _mean_by_pieces(self, bucket: Bucket, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        flat = [source.reshape(-1) for source in sources]
        before: _Part | None = None
        for part in self._plan(bucket):
            # Two barriers ago all had read what lay in these buffers.
            self._encode(part, flat)
            self._window.wait()
            self._watch.lap("wait" if before is None else "move")
            self._turn ^= 1
            self._reduce(part)
            if before is not None:
                self._decode(before, self._turn, out)
            before = part
        if before is not None:
            self._window.wait()
            self._watch.lap("move")
            self._decode(before, self._turn ^ 1, out)

    def _encode(self, part: _Part, flat: list[NDArray[Any]]) -> None:
        wire = self._wires[self._turn][self._local_rank]
        for source in part.sources:
            self._seeded.own(source.first).encode(flat[source.number][source.numbers], wire[source.wire])
            wire[source.gap] = 0
        self._watch.lap("encode")

    def _reduce(self, part: _Part) -> None:
        """Our piece of the part that was encoded last, over the node and then over the nodes."""
        if self._local_rank >= self._pieces:
            return
        turn, own = self._turn ^ 1, self._local_rank
        pieces = [wire[part.own] for wire in self._wires[turn]]
        result = self._results[turn][own][: len(pieces[0])]
        mean = result if self._node_mean is None else self._node_mean[: len(result)]
        if len(pieces) == 1:
            mean = pieces[0]
        else:
            codec = (self._seeded.final if self._cross is None else self._seeded.node)(part.first)
            codec.reduce(pieces, self._weights, mean, self._scratch[: part.numbers])
            self._watch.lap("reduce")
        if self._cross is not None:
            self._cross.mean(mean, result, part.numbers, part.first)

    def _decode(self, part: _Part, turn: int, out: NDArray[np.float32]) -> None:
        for result, (nbytes, numbers) in zip(self._results[turn], part.pieces, strict=False):
            self._codec.decode(result[:nbytes], out[numbers])
        self._watch.lap("decode")

    def _plan(self, bucket: Bucket) -> list[_Part]:
        if bucket not in self._plans:
            parts = range(0, bucket.length, self._step)
            self._plans[bucket] = [self._part(bucket, start, min(start + self._step, bucket.length)) for start in parts]
        return self._plans[bucket]

    def _part(self, bucket: Bucket, first: int, last: int) -> _Part:
        wire_bytes, own = self._codec.wire_bytes, self._local_rank
        sources = []
        ends = [slot.offset for slot in bucket.slots[1:]] + [bucket.length]
        for number, (slot, end) in enumerate(zip(bucket.slots, ends, strict=True)):
            start, stop = max(slot.offset, first), min(slot.offset + slot.numel, last)
            stop, end = max(start, stop), min(end, last)
            if start < end:
                wire = slice(wire_bytes(start - first), wire_bytes(start - first) + wire_bytes(stop - start))
                numbers = slice(start - slot.offset, stop - slot.offset)
                sources.append(_Source(number, numbers, start, wire, slice(wire.stop, wire_bytes(end - first))))
        bounds = piece_bounds(last - first, self._pieces, self._grain)
        pieces = [(wire_bytes(b - a), slice(first + a, first + b)) for a, b in pairwise(bounds)]
        mine = (bounds[own], bounds[own + 1]) if own < self._pieces else (0, 0)
        nbytes = slice(wire_bytes(mine[0]), wire_bytes(mine[1]))
        return _Part(sources, nbytes, first + mine[0], mine[1] - mine[0], pieces)

    def close(self) -> None:
        """Free the shared memory. Collective."""
        self._wires, self._results = [], []
        self._window.close()
