"""Chooses the size of the buckets by a short sweep over the ranks that will train."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dist_mp.codec.base import Codec
from dist_mp.comm.world import World
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.pieces import aligned
from dist_mp.exchange.placement import GpuPath
from dist_mp.exchange.plan import Bucket, Shape, plan_buckets

SIZES_MIB = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
ROUNDS = 5
SLACK = 1.05
"""A smaller bucket leaves sooner, while backward still runs, so the smallest size within 5% of the best wins."""


@dataclass(frozen=True)
class BucketSweep:
    """What was measured, and what was chosen; the same on every rank."""

    mib: float
    """The chosen size, counted in FP32 (MiB)."""
    seconds: dict[float, float]
    """Time of the exchange of all gradients by bucket size: of the slowest rank, median over the rounds (s)."""

    def __str__(self) -> str:
        times = ", ".join(f"{mib:g} MiB {1e3 * seconds:.3g} ms" for mib, seconds in self.seconds.items())
        return f"{self.mib:g} MiB chosen of {times}"


def sweep_bucket_sizes(
    world: World,
    codec: Codec,
    paths: Sequence[str],
    shapes: Sequence[Shape],
    dtype: DTypeLike,
    algorithm: str,
    sizes_mib: Sequence[float] = SIZES_MIB,
    rounds: int = ROUNDS,
    gpu: GpuPath | None = None,
) -> BucketSweep:
    """Exchange gradients of these shapes in buckets of several sizes, and choose. Collective.

    Sizes that give the same buckets are measured once.

    Args:
        world: the ranks.
        codec: what a number is on the wire.
        paths: names of the gradients, in creation order.
        shapes: their shapes.
        dtype: their type.
        algorithm: of the exchange.
        sizes_mib: sizes to try, ascending (MiB).
        rounds: exchanges that are timed for each size.
        gpu: where the gradients will lie on this rank's GPU; None for host memory.
    """
    sources: list[Any] = [np.ones(shape, dtype) for shape in shapes]
    if gpu is not None:
        bits = dtype if np.dtype(dtype).name in ("float16", "float32") else np.uint16
        sources = [gpu.device.from_host(source.reshape(-1).view(bits)) for source in sources]
    plans: dict[tuple[Bucket, ...], float] = {}
    for mib in sizes_mib:
        plans.setdefault(plan_buckets(paths, shapes, mib, codec.block), mib)
    measured = {mib: _measure(world, codec, plan, sources, algorithm, rounds, gpu) for plan, mib in plans.items()}
    return BucketSweep(choose(measured), measured)


def choose(seconds: dict[float, float]) -> float:
    """The smallest size whose time is within 5% of the shortest."""
    limit = SLACK * min(seconds.values(), default=math.inf)
    return min(mib for mib, time_taken in seconds.items() if time_taken <= limit)


def _measure(
    world: World,
    codec: Codec,
    plan: Sequence[Bucket],
    sources: Sequence[Any],
    algorithm: str,
    rounds: int,
    gpu: GpuPath | None,
) -> float:
    longest = max((bucket.length for bucket in plan), default=0)
    out: Any = aligned(4 * longest).view(np.float32) if gpu is None else gpu.device.empty(longest, np.float32)
    times = []
    active: AbstractContextManager[Any] = nullcontext() if gpu is None else gpu.device.active()
    with active, Allreduce(world, codec, plan, algorithm, gpu=gpu) as allreduce:
        for _ in range(1 + rounds):
            world.barrier()
            start = time.perf_counter()
            for number, bucket in enumerate(plan):
                allreduce.mean(number, [sources[slot.index] for slot in bucket.slots], out[: bucket.length])
            times.append(time.perf_counter() - start)
    # The first exchange compiles kernels and touches memory for the first time.
    every = np.array(world.allgather(times[1:]))
    return float(np.median(every.max(axis=0)))
