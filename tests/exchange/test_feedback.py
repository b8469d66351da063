"""Error feedback in the exchange: what the wire loses in a step comes back in the next."""

from __future__ import annotations

import numpy as np
import pytest

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.world import World
from dist_mp.exchange.allreduce import ALGORITHMS, Allreduce
from dist_mp.exchange.plan import plan_buckets

SHAPES = [(40, 7), (300,), (3,)]
CODES = {"shared": ["linear", "one_bit", "fp16"], "pieces": ["linear"], "native": ["fp16"]}


def gradients(rank: int) -> list[np.ndarray]:
    """The same in every step; large and small numbers, so that one scale loses the small ones."""
    rng = np.random.default_rng([rank, 1])
    return [(rng.standard_normal(s) * rng.choice([1.0, 1e-3], s)).astype(np.float32) for s in SHAPES]


@pytest.mark.mpi(ranks=[1, 2, 3], timeout=90)
def test_the_mean_over_steps_goes_to_the_true_mean() -> None:
    with World.open() as world:
        plan = plan_buckets(["a", "b", "c"], SHAPES, 1e-3, 64)
        truth = np.mean([np.concatenate([g.ravel() for g in gradients(r)]) for r in range(world.size)], axis=0)
        for algorithm in ALGORITHMS:
            for name in CODES[algorithm]:
                errors = {}
                for feedback in (False, True):
                    codec = codec_by_name(name, 64)
                    with Allreduce(world, codec, plan, algorithm, error_feedback=feedback) as allreduce:
                        total, steps = np.zeros_like(truth), 40
                        for step in range(steps):
                            allreduce.loss_scale = 2.0 ** (step % 5)
                            total += mean(allreduce, plan, world.rank, allreduce.loss_scale) / steps
                            if step == 3:  # a skipped step leaves no trace
                                mean(allreduce, plan, world.rank, np.inf)
                                allreduce.settle(False)
                            allreduce.settle(True)
                    errors[feedback] = np.abs(total - truth).mean()
                if name != "fp16":
                    # The sum is encoded a second time, without feedback, where there is more than one rank.
                    assert errors[True] < errors[False] * (0.2 if world.size == 1 else 0.8), (algorithm, name, errors)
                assert np.isfinite(errors[True])


def mean(allreduce: Allreduce, plan: tuple, rank: int, scale: float) -> np.ndarray:
    """One step: the mean of the scaled gradients, unscaled, in creation order."""
    own = gradients(rank)
    parts = {}
    for number, bucket in enumerate(plan):
        out = np.empty(bucket.length, np.float32)
        with np.errstate(invalid="ignore"):
            allreduce.mean(number, [own[s.index] * np.float32(scale) for s in bucket.slots], out)
            for slot in bucket.slots:
                parts[slot.index] = out[slot.offset : slot.offset + slot.numel] / np.float32(scale)
    return np.concatenate([parts[i] for i in range(len(parts))])
