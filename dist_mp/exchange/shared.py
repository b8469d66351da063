"""Algorithm `shared`: shared memory within a node, pieces between nodes.

Every rank encodes into its segment of shared memory. After a barrier local rank k sums piece k from the segments of
its node. It exchanges the node's mean of piece k with the local ranks k of the other nodes only, so that each node
sends its numbers once however many ranks it has. After a second barrier every rank decodes all pieces from the
segments of its node.

Between the nodes travels the node's mean, never its sum: a sum could overflow 16 bits. Means are weighted by the
number of ranks on their node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.comm.transfer import Transfer
from dist_mp.comm.window import ALIGNMENT, SharedWindow
from dist_mp.comm.world import World
from dist_mp.exchange.pieces import PieceExchange, aligned, cut_grain, encode_slots, numbers_within, piece_bounds
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.stats import Stopwatch


class SharedMean:
    """Means of buckets over all ranks, on one node or many, with one rank a node or more."""

    def __init__(
        self, world: World, codec: Codec, longest: int, watch: Stopwatch, *, max_bytes: int, gather_below: int
    ) -> None:
        """Allocate for buckets of up to `longest` numbers. Collective."""
        self._codec, self._watch = codec, watch
        self._local_rank, self._num_nodes = world.local_rank, world.num_nodes
        # A piece needs an owner on every node, so the smallest node decides how many there are.
        self._pieces = min(world.node_sizes)
        self._grain = cut_grain(codec)
        self._gather_numbers = numbers_within(codec, gather_below) if self._num_nodes == 1 else 0
        self._weights = [1 / world.local_size] * world.local_size
        longest_piece = piece_bounds(longest, self._pieces, self._grain)[1]
        wire = _round_up(codec.wire_bytes(longest))
        piece = _round_up(codec.wire_bytes(longest_piece))
        self._window = SharedWindow(world, 2 * wire + piece)
        segments = self._window.segments
        # Two buffers in turn: where a call has one barrier, a rank may be one call ahead of one that still reads.
        self._buffers = [[s[i * wire : (i + 1) * wire] for s in segments] for i in range(2)]
        self._results = [s[2 * wire :] for s in segments]
        self._turn = 0
        whole = min(longest, self._gather_numbers)
        self._scratch = np.empty(max(longest_piece, whole), np.float32)
        self._whole = aligned(codec.wire_bytes(whole))
        self._cross: PieceExchange | None = None
        self._node_mean: Wire | None = None
        if self._num_nodes > 1 and self._local_rank < self._pieces:
            self._node_mean = aligned(piece)
            self._cross = PieceExchange(
                Transfer(world.cross_comm),
                codec,
                [size / world.size for size in world.node_sizes],
                longest_piece,
                watch,
                max_bytes=max_bytes,
                gather_below=gather_below,
            )

    def mean(self, bucket: Bucket, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Write the mean over the ranks of a bucket's gradients into `out`."""
        codec, watch = self._codec, self._watch
        nbytes = codec.wire_bytes(bucket.length)
        wires = [buffer[:nbytes] for buffer in self._buffers[self._turn]]
        self._turn ^= 1
        encode_slots(codec, bucket, sources, wires[self._local_rank])
        watch.lap("encode")
        self._window.wait()
        watch.lap("wait")
        if len(wires) == self._num_nodes == 1:
            codec.decode(wires[0], out)
            watch.lap("decode")
        elif bucket.length <= self._gather_numbers:
            self._mean_of_all(wires, out)
        else:
            self._mean_by_pieces(wires, out)
        if len(wires) > 1:
            watch.stats.shared_bytes += nbytes  # of the encoded gradients all but our piece, and our piece of the mean

    def _mean_of_all(self, wires: list[Wire], out: NDArray[np.float32]) -> None:
        """Every rank sums everything itself, which saves the second barrier; the bits are the same."""
        whole = self._whole[: len(wires[0])]
        self._codec.reduce(wires, self._weights, whole, self._scratch[: len(out)])
        self._watch.lap("reduce")
        self._codec.decode(whole, out)
        self._watch.lap("decode")

    def _mean_by_pieces(self, wires: list[Wire], out: NDArray[np.float32]) -> None:
        codec, watch, own = self._codec, self._watch, self._local_rank
        bounds = piece_bounds(len(out), self._pieces, self._grain)
        starts = [codec.wire_bytes(b) for b in bounds]
        results = [r[: end - start] for r, start, end in zip(self._results, starts, starts[1:], strict=False)]
        if own < self._pieces:
            parts = [wire[starts[own] : starts[own + 1]] for wire in wires]
            numbers = bounds[own + 1] - bounds[own]
            node_mean = results[own] if self._node_mean is None else self._node_mean[: len(results[own])]
            if len(parts) == 1:
                node_mean = parts[0]
            else:
                codec.reduce(parts, self._weights, node_mean, self._scratch[:numbers])
                watch.lap("reduce")
            if self._cross is not None:
                self._cross.mean(node_mean, results[own], numbers)
        self._window.wait()
        watch.lap("move")
        for k, result in enumerate(results):
            codec.decode(result, out[bounds[k] : bounds[k + 1]])
        watch.lap("decode")

    def close(self) -> None:
        """Free the shared memory. Collective."""
        self._buffers, self._results = [], []
        self._window.close()


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
