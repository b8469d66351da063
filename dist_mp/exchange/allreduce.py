"""The mean of gradients over all ranks, bucket by bucket, by one of three algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec
from dist_mp.comm.transfer import MAX_BYTES
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.averager import Averager
from dist_mp.exchange.compensation import Compensation, HostCompensation
from dist_mp.exchange.native import NativeMean
from dist_mp.exchange.pieces import GATHER_BELOW, PiecesMean
from dist_mp.exchange.placement import GpuPath
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec
from dist_mp.exchange.shared import PART_NUMBERS, SharedMean
from dist_mp.exchange.stats import ExchangeStats, Span, Stopwatch

Algorithm = Literal["shared", "pieces", "native"]
ALGORITHMS: tuple[Algorithm, ...] = ("shared", "pieces", "native")


class MeanAlgorithm(Protocol):
    """What every algorithm does."""

    def mean(self, bucket: Bucket, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Write the mean over the ranks of a bucket's gradients into `out`."""
        ...

    def close(self) -> None:
        """Free what the algorithm holds."""
        ...


class Allreduce(Averager):
    """Averages the gradients of a plan of buckets over all ranks.

    The mean is the same bits on every rank and in every rerun. With `shared` and `pieces` the sum is FP32 in rank
    order (within a node, then over the nodes), so it neither overflows nor vanishes in 16 bits; an infinity or NaN of
    any rank makes the mean non-finite on all. With `native` MPI sums in the wire's type, in an order of its own.

    All buffers are allocated here. One call runs at a time, and all ranks call in the same order.
    """

    def __init__(
        self,
        world: World,
        codec: Codec,
        buckets: Sequence[Bucket],
        algorithm: str = "shared",
        *,
        max_bytes: int = MAX_BYTES,
        gather_below: int = GATHER_BELOW,
        part_numbers: int = PART_NUMBERS,
        error_feedback: bool = False,
        seed: int = 0,
        span: Span | None = None,
        gpu: GpuPath | None = None,
    ) -> None:
        """Allocate the buffers. Collective.

        Args:
            world: the ranks.
            codec: what a number is on the wire.
            buckets: the plan, the same on every rank.
            algorithm: `shared` (shared memory within a node, pieces between nodes), `pieces` (one level) or `native`
                (MPI_Allreduce).
            max_bytes: longest transfer of one MPI call; longer ones go in parts, with the same result.
            gather_below: wire bytes up to which a bucket is gathered whole instead of in pieces, to save a message
                time; the result is the same.
            part_numbers: numbers that go through the phases together in shared memory; the result is the same.
            error_feedback: add to each gradient what the wire lost of it in the step before; call :meth:`settle` after
                each step.
            seed: of the run, for a codec that rounds at random.
            span: gets every phase with its start and end, for a timeline.
            gpu: where the gradients lie on this rank's GPU; None for host memory. The means have the same bits.

        Raises:
            UserError: an unknown algorithm, or one that cannot carry this codec.
        """
        self.gpu = gpu
        self.stats = ExchangeStats()
        self._watch = Stopwatch(self.stats, span)
        self._watchdog = world.watchdog
        self._buckets = tuple(buckets)
        self._codec = SeededCodec(codec, seed, world.rank, world.node)
        self._compensation = self._feedback() if error_feedback else None
        self._names = [f"the exchange of bucket {i + 1} of {len(buckets)}" for i in range(len(buckets))]
        longest = max((b.length for b in self._buckets), default=0)
        with self._watchdog("the allocation of the exchange"):
            self._algorithm = self._make(algorithm, world, longest, max_bytes, gather_below, part_numbers)

    def _feedback(self) -> Compensation:
        if self.gpu is None:
            return HostCompensation(self._codec, self._buckets)
        from dist_mp.exchange.device_feedback import DeviceCompensation  # numba.cuda, for those who have a GPU

        return DeviceCompensation(self._codec, self._buckets, self.gpu.device)

    def _make(
        self, algorithm: str, world: World, longest: int, max_bytes: int, gather_below: int, part: int
    ) -> MeanAlgorithm:
        codec = self._codec
        if self.gpu is not None and algorithm in ("shared", "pieces"):
            from dist_mp.exchange.device import DeviceMean

            device, direct = self.gpu.device, self.gpu.direct
            sizes = {"max_bytes": max_bytes, "gather_below": gather_below}
            two_levels = algorithm == "shared"
            return DeviceMean(world, codec, longest, self._watch, device, two_levels=two_levels, direct=direct, **sizes)
        if algorithm == "shared":
            limits = {"max_bytes": max_bytes, "gather_below": gather_below, "part_numbers": part}
            return SharedMean(world, codec, longest, self._watch, **limits)
        if algorithm == "pieces":
            return PiecesMean(world, codec, longest, self._watch, max_bytes=max_bytes, gather_below=gather_below)
        if algorithm == "native":
            return NativeMean(world, codec, longest, self._watch, max_bytes=max_bytes)
        raise UserError(f"unknown exchange.algorithm {algorithm!r}: valid are {', '.join(ALGORITHMS)}")

    def mean(self, index: int, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Average bucket `index` over the ranks; see :class:`Averager`."""
        bucket = self._buckets[index]
        if len(out) != bucket.length:
            raise ValueError(f"bucket {index} has {bucket.length} numbers, the output {len(out)}")
        with self._watchdog(self._names[index]):
            self._watch.start()
            self._codec.begin(self.step, index)
            if self._compensation is not None:
                sources = self._compensation.add(bucket, sources, self.loss_scale)
            self._algorithm.mean(bucket, sources, out)
        self.stats.calls += 1

    def settle(self, applied: bool) -> None:
        """The step is over; see :class:`Averager`."""
        if self._compensation is not None:
            self._compensation.settle(applied)

    def residuals(self) -> list[NDArray[np.float32]]:
        """Copies of this rank's residuals of error feedback, flat, in the order of the variables; none without it."""
        return [] if self._compensation is None else self._compensation.feedback.state()

    def load_residuals(self, residuals: Sequence[NDArray[np.float32]]) -> None:
        """Take over residuals, of a checkpoint; see :meth:`dist_mp.codec.feedback.ErrorFeedback.load`."""
        if self._compensation is not None:
            self._compensation.feedback.load(residuals)

    def close(self) -> None:
        """Free shared memory and MPI's objects. Collective."""
        with self._watchdog("the release of the exchange"):
            self._algorithm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # after a failure the other ranks may not come to a collective call any more
            self.close()
