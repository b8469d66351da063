"""Stochastic rounding in the exchange: the reference's bits by seed, step, bucket and place, and right in the mean."""

from __future__ import annotations

import numpy as np
import pytest

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.world import World
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.plan import flat_bucket, plan_buckets
from tests.exchange.expected import mean_over_ranks, rank_values

NAMES = ("dynamic_tree", "linear", "fp8_e4m3", "dynamic_uniform")
WAYS = ({}, {"gather_below": 0}, {"gather_below": 0, "max_bytes": 1024}, {"gather_below": 0, "part_numbers": 256})


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=120)
def test_random_rounding_has_the_bits_of_the_reference_whatever_the_cuts() -> None:
    for ranks_per_node in (None, 2, 1):
        with World.open(ranks_per_node) as world:
            for name in NAMES:
                codec = codec_by_name(name, stochastic=True)
                for length in (1, 1000, 5000):
                    bucket = flat_bucket(length, codec.block)
                    values = [rank_values(rank, length) for rank in range(world.size)]
                    for algorithm in ("shared", "pieces"):
                        node_sizes = list(world.node_sizes) if algorithm == "shared" else [1] * world.size
                        for limits in WAYS:
                            out = np.full(bucket.length, np.nan, np.float32)
                            with Allreduce(world, codec, [bucket], algorithm, seed=5, **limits) as allreduce:
                                for step in (3, 4):
                                    allreduce.step = step
                                    allreduce.mean(0, [values[world.rank]], out)
                                    want = mean_over_ranks(name, values, node_sizes, (5, step, 0))
                                    where = f"{name} {algorithm} {length} {limits} step {step} {world.node_sizes}"
                                    np.testing.assert_array_equal(out[:length], want, err_msg=where)


@pytest.mark.mpi(ranks=[2, 4], timeout=60)
def test_random_rounding_is_right_in_the_mean_and_differs_by_step_bucket_and_rank() -> None:
    with World.open() as world:
        codec = codec_by_name("linear", stochastic=True)
        buckets = plan_buckets(["a", "b"], [(640,), (640,)], 0.001, codec.block)
        values = np.linspace(-1, 1, 640, dtype=np.float32) ** 3
        means = np.zeros(640)
        seen = set()
        with Allreduce(world, codec, buckets, seed=9) as allreduce:
            for step in range(200):
                allreduce.step = step
                for number, bucket in enumerate(buckets):
                    out = np.empty(bucket.length, np.float32)
                    allreduce.mean(number, [values], out)
                    means += out[:640]
                    seen.add(out.tobytes())
        assert len(seen) == 400
        # A step of 1/127, rounded at random twice: the mean of n lies within 5 standard deviations of the number.
        np.testing.assert_allclose(means / 400, values, atol=5 * (1 / 127) / np.sqrt(400))
        nearest = np.round(values * 127) / 127
        assert np.abs(nearest - values).mean() > 3 * np.abs(means / 400 - values).mean()


@pytest.mark.mpi(ranks=[3], timeout=60)
def test_error_feedback_keeps_what_random_rounding_lost() -> None:
    with World.open() as world:
        codec = codec_by_name("linear", stochastic=True)
        bucket = flat_bucket(640, codec.block)
        values = np.linspace(-1, 1, 640, dtype=np.float32) ** 3 * (1 + world.rank)
        total = np.zeros(640)
        with Allreduce(world, codec, [bucket], error_feedback=True, seed=2) as allreduce:
            for step in range(100):
                allreduce.step = step
                out = np.empty(bucket.length, np.float32)
                allreduce.mean(0, [values], out)
                allreduce.settle(applied=True)
                total += out[:640]
        # What the ranks lost came back, so that only the rounding of the means is left: 2/127, at random.
        np.testing.assert_allclose(total / 100, 2 * values / (1 + world.rank), atol=5 * (2 / 127) / np.sqrt(100))
