"""The exchange of virtual workers: each rank contributes the gradients of several workers, one after the other.

Every worker's gradients are encoded by themselves, with the worker's own residuals and random numbers, into shared
memory. The mean is then taken as if each worker were a rank of one node: FP32 sum in the order of the workers, pieces
of the same bounds, one encode of the mean. So it has the bits that as many real ranks on one node would get.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec
from dist_mp.comm.window import SharedWindow, round_up
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.averager import Averager
from dist_mp.exchange.compensation import HostCompensation
from dist_mp.exchange.pieces import GATHER_BELOW, cut_grain, encode_slots, numbers_within, piece_bounds
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec
from dist_mp.exchange.stats import ExchangeStats, Span, Stopwatch


class VirtualAllreduce(Averager):
    """Averages the gradients of a plan of buckets over all virtual workers of all ranks, which share one node.

    In a step, a rank calls :meth:`put` for each bucket of each of its workers but the last, in order, and :meth:`mean`
    for the buckets of the last one. Needs shared memory for the wires of all workers.
    """

    def __init__(
        self,
        world: World,
        codec: Codec,
        buckets: Sequence[Bucket],
        workers: int,
        *,
        gather_below: int = GATHER_BELOW,
        error_feedback: bool = False,
        seed: int = 0,
        span: Span | None = None,
    ) -> None:
        """Allocate the buffers. Collective.

        Args:
            world: the ranks, on one node.
            codec: what a number is on the wire.
            buckets: the plan, the same on every rank.
            workers: virtual workers of each rank.
            gather_below: as of :class:`dist_mp.exchange.allreduce.Allreduce`; has to do with the cuts alone.
            error_feedback: add to each worker's gradient what the wire lost of it in the step before.
            seed: of the run, for a codec that rounds at random.
            span: gets every phase with its start and end, for a timeline.

        Raises:
            UserError: the ranks are on several nodes.
        """
        if world.num_nodes > 1:
            raise UserError(
                f"train.virtual_workers: needs all ranks on one node, they are on {world.num_nodes}; run "
                "fewer ranks, each for more workers"
            )
        self.stats = ExchangeStats()
        self._watch = Stopwatch(self.stats, span)
        self._watchdog = world.watchdog
        self._buckets, self._codec = tuple(buckets), codec
        self._workers, self._rank, self._total = workers, world.rank, workers * world.size
        first = world.rank * workers
        self._seeded = [SeededCodec(codec, seed, first + k, world.node) for k in range(workers)]
        self._compensation = [HostCompensation(s, self._buckets) for s in self._seeded] if error_feedback else []
        self._put = [0] * len(self._buckets)
        grain, gather_numbers = cut_grain(codec), numbers_within(codec, gather_below)
        self._bounds = [
            [0, *[b.length] * self._total]
            if b.length <= gather_numbers or self._total == 1
            else piece_bounds(b.length, self._total, grain)
            for b in self._buckets
        ]
        sizes = [round_up(codec.wire_bytes(b.length)) for b in self._buckets]
        self._starts = [sum(sizes[:k]) for k in range(len(sizes))]
        self._stride, longest = sum(sizes), max(sizes, default=0)
        with self._watchdog("the allocation of the exchange"):
            self._window = SharedWindow(world, workers * self._stride + longest)
        numbers = max((b - a for bounds in self._bounds for a, b in pairwise(bounds)), default=0)
        self._scratch = np.empty(numbers, np.float32)

    def put(self, index: int, sources: Sequence[NDArray[Any]]) -> None:
        """Encode the gradients of bucket `index` of this rank's next worker. Not collective.

        Args:
            index: number of the bucket in the plan.
            sources: the worker's gradients in the order of the bucket's slots, float32, float16 or bfloat16.
        """
        self._watch.start()
        bucket, worker = self._buckets[index], self._put[index]
        self._put[index] += 1
        seeded = self._seeded[worker]
        seeded.begin(self.step, index)
        if self._compensation:
            sources = self._compensation[worker].add(bucket, sources, self.loss_scale)
        encode_slots(seeded, bucket, sources, self._wire(self._rank, worker, index))
        self._watch.lap("encode")

    def mean(self, index: int, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Add the last worker's gradients and average bucket `index` over all workers; see :class:`Averager`."""
        if self._put[index] != self._workers - 1:
            raise ValueError(f"bucket {index} has gradients of {self._put[index]} workers before the last")
        self.put(index, sources)
        self._put[index] = 0
        watch, codec, bounds = self._watch, self._codec, self._bounds[index]
        with self._watchdog(f"the exchange of bucket {index + 1} of {len(self._buckets)}"):
            self._window.wait()
            watch.lap("wait")
            ranks = range(len(self._window.segments))
            wires = [self._wire(rank, worker, index) for rank in ranks for worker in range(self._workers)]
            weights = [1 / self._total] * self._total
            for owner in range(self._rank * self._workers, (self._rank + 1) * self._workers):
                start, stop = bounds[owner], bounds[owner + 1]
                if start < stop:
                    cut = slice(codec.wire_bytes(start), codec.wire_bytes(stop))
                    result = self._result(self._rank, cut)
                    if self._total == 1:
                        result[:] = wires[0][cut]
                    else:
                        final = self._seeded[-1].final(start)  # it was told of this bucket last
                        final.reduce([w[cut] for w in wires], weights, result, self._scratch[: stop - start])
            watch.lap("reduce")
            self._window.wait()
            watch.lap("move")
            for owner, (start, stop) in enumerate(pairwise(bounds)):
                if start < stop:
                    cut = slice(codec.wire_bytes(start), codec.wire_bytes(stop))
                    codec.decode(self._result(owner // self._workers, cut), out[start:stop])
            watch.lap("decode")
            # The next bucket's means go to the same place.
            self._window.wait()
            watch.lap("move")
        self.stats.shared_bytes += codec.wire_bytes(self._buckets[index].length)
        self.stats.calls += 1

    def _wire(self, rank: int, worker: int, index: int) -> NDArray[np.uint8]:
        start = worker * self._stride + self._starts[index]
        return self._window.segments[rank][start : start + self._codec.wire_bytes(self._buckets[index].length)]

    def _result(self, rank: int, cut: slice) -> NDArray[np.uint8]:
        return self._window.segments[rank][self._workers * self._stride :][cut]

    def settle(self, applied: bool) -> None:
        """The step is over; see :class:`Averager`."""
        for compensation in self._compensation:
            compensation.settle(applied)

    def residuals(self) -> list[NDArray[np.float32]]:
        """Copies of this rank's residuals in the order of the variables, [workers, numbers]; none without feedback."""
        states = [compensation.feedback.state() for compensation in self._compensation]
        return [np.stack(rows) for rows in zip(*states, strict=True)]

    def load_residuals(self, residuals: Sequence[NDArray[np.float32]]) -> None:
        """Take over residuals of the workers of this rank, [workers, numbers], of a checkpoint."""
        for worker, compensation in enumerate(self._compensation):
            compensation.feedback.load([rows[worker] for rows in residuals])

    def close(self) -> None:
        """Free shared memory. Collective."""
        with self._watchdog("the release of the exchange"):
            self._window.close()
