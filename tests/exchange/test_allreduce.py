"""The mean over the ranks, under a real mpirun: every algorithm with every codec, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dist_mp.codec.table import codec_by_name, codec_names
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.plan import flat_bucket, plan_buckets
from tests.exchange.expected import mean_over_ranks, rank_values

LENGTHS = (0, 1, 2, 63, 64, 65, 1000, 100_003)
EVERY_CODEC = (1, 1000)
"""Lengths at which every codec is tried; the others are tried with one codec of each kind."""
ONE_OF_A_KIND = ("fp32", "fp16", "dynamic_tree", "dynamic_uniform")
WAYS = (
    {"gather_below": 1 << 20},
    {"gather_below": 0},
    {"gather_below": 0, "max_bytes": 1024},
    {"gather_below": 0, "part_numbers": 256},
)
"""Gathered whole, in pieces, in pieces in many small transfers, in many parts; all give the same bits."""
NATIVE = ("fp32", "fp16", "bf16")
EPSILON = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}


def claims(codecs: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every codec with every algorithm that carries it."""
    for name in codecs or codec_names():
        for algorithm in ("shared", "pieces", "native") if name in NATIVE else ("shared", "pieces"):
            yield name, algorithm


def averaged(
    world: World, name: str, algorithm: str, values: NDArray, *, times: int = 1, **limits: int
) -> NDArray[np.float32]:
    """The mean of this rank's `values` with the others', checked to be the same bits on every rank."""
    codec = codec_by_name(name)
    bucket = flat_bucket(len(values), codec.block)
    out = np.full(bucket.length, np.nan, np.float32)
    with Allreduce(world, codec, [bucket], algorithm, **limits) as allreduce:
        for _ in range(times):
            allreduce.mean(0, [values], out)
    assert len(set(world.allgather(out.tobytes()))) == 1, (name, algorithm, len(values))
    np.testing.assert_array_equal(out[len(values) :], 0)
    return out[: len(values)].copy()


def check_all(world: World) -> None:
    """Every length, codec, algorithm and way through the algorithm against the reference."""
    for length in LENGTHS:
        values = [rank_values(rank, length) for rank in range(world.size)]
        for name, algorithm in claims(codec_names() if length in EVERY_CODEC else ONE_OF_A_KIND):
            node_sizes = list(world.node_sizes) if algorithm == "shared" else [1] * world.size
            got = averaged(world, name, algorithm, values[world.rank])
            if algorithm == "native":
                assert_native(name, got, values)
                continue
            want = mean_over_ranks(name, values, node_sizes)
            np.testing.assert_array_equal(got, want, err_msg=f"{name} {algorithm} {length}")
            for limits in WAYS if length >= 65 and name in ONE_OF_A_KIND else ():
                if length <= 1000 or limits["gather_below"] == 0:  # and a second time in the same buffers
                    again = averaged(world, name, algorithm, values[world.rank], times=2, **limits)
                    np.testing.assert_array_equal(again, got, err_msg=f"{name} {algorithm} {length} {limits}")


def assert_native(name: str, got: NDArray[np.float32], values: list[NDArray[np.float32]]) -> None:
    """Within the rounding of each rank's number to the wire and of each partial sum."""
    codec = codec_by_name(name)
    wires = np.empty((len(values), codec.wire_bytes(len(got))), np.uint8)
    numbers = np.empty((len(values), len(got)), np.float32)
    for wire, number, value in zip(wires, numbers, values, strict=True):
        codec.encode(value, wire)
        codec.decode(wire, number)
    with np.errstate(invalid="ignore"):
        exact = numbers.astype(np.float64).mean(axis=0)
        bound = EPSILON[name] * np.abs(numbers.astype(np.float64)).sum(axis=0) + 2.0**-24
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    assert (np.abs(got - exact)[finite] <= bound[finite]).all(), name


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=120)
def test_means_on_one_node_match_the_reference() -> None:
    with World.open() as world:
        assert world.num_nodes == 1
        check_all(world)


@pytest.mark.mpi(ranks=[3, 4], timeout=120)
def test_means_on_pretend_nodes_match_the_reference() -> None:
    with World.open(ranks_per_node=2) as world:
        assert world.node_sizes == ((2, 1) if world.size == 3 else (2, 2))
        check_all(world)


@pytest.mark.mpi(ranks=[2, 3], timeout=120)
def test_means_with_one_rank_a_node_match_the_reference() -> None:
    with World.open(ranks_per_node=1) as world:
        assert world.num_nodes == world.size
        check_all(world)


@pytest.mark.mpi(ranks=[4], timeout=120)
def test_means_on_three_and_one_ranks_match_the_reference() -> None:
    with World.open(ranks_per_node=3) as world:
        assert world.node_sizes == (3, 1)
        check_all(world)


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=60)
def test_mean_neither_overflows_nor_vanishes() -> None:
    mixed = np.array([20000, 6e-8, 65504, -20000, -6e-8, 1, 0], np.float32)
    for ranks_per_node in (None, 1, 2):
        with World.open(ranks_per_node) as world:
            for name, algorithm in claims():
                for values in (np.full(1000, 20000, np.float32), np.full(1000, 6e-8, np.float32), mixed):
                    got = averaged(world, name, algorithm, values, gather_below=0)
                    want = mean_over_ranks(name, [values], [1])
                    if algorithm == "native":
                        np.testing.assert_allclose(got, want, rtol=2 * EPSILON[name], err_msg=f"{name} {algorithm}")
                    elif name in NATIVE:
                        np.testing.assert_allclose(got, want, rtol=1e-7, err_msg=f"{name} {algorithm}")
                    assert np.isfinite(got).all()
                    assert ((got != 0) == (want != 0)).all()


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=60)
def test_non_finite_numbers_of_any_rank_reach_all() -> None:
    with World.open() as world:
        for culprit in range(world.size):
            for bad in (np.nan, np.inf, -np.inf):
                values = np.full(300, 1.0 + world.rank, np.float32)
                if world.rank == culprit:
                    values[137] = bad
                for name, algorithm in claims():
                    for gather_below in (0, 1 << 20):
                        got = averaged(world, name, algorithm, values, gather_below=gather_below)
                        assert not np.isfinite(got[137]), (name, algorithm, bad)
                        if codec_by_name(name).block == 1:
                            assert np.isfinite(np.delete(got, 137)).all(), (name, algorithm, bad)


@pytest.mark.mpi(ranks=[2, 4], timeout=60)
def test_codes_are_never_summed_as_codes() -> None:
    """The largest code of all ranks gives its value as the mean, and ones come back as ones from every type."""
    import ml_dtypes

    with World.open(ranks_per_node=2) as world:
        for name, algorithm in claims():
            for value in (7.0, -7.0):  # 1.75 x 4, which every book and every power-of-two scale can express
                got = averaged(world, name, algorithm, np.full(600, value, np.float32))
                np.testing.assert_array_equal(got, np.float32(value), err_msg=f"{name} {algorithm}")
            for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
                got = averaged(world, name, algorithm, np.ones(300, dtype))
                np.testing.assert_array_equal(got, np.float32(1), err_msg=f"{name} {algorithm} {dtype}")


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=60)
def test_one_scale_for_a_whole_gradient_is_cut_as_well() -> None:
    with World.open(ranks_per_node=2) as world:
        for algorithm in ("shared", "pieces"):
            codec = codec_by_name("linear", block=0)
            bucket = flat_bucket(5000, codec.block)
            values = np.linspace(-1, 1, 5000, dtype=np.float32) * (1 + world.rank)
            out = np.full(bucket.length, np.nan, np.float32)
            for limits in ({}, {"gather_below": 0}, {"gather_below": 0, "max_bytes": 4096}):
                with Allreduce(world, codec, [bucket], algorithm, **limits) as allreduce:
                    allreduce.mean(0, [values], out)
                assert len(set(world.allgather(out.tobytes()))) == 1
                want = np.linspace(-1, 1, 5000) * (1 + world.size) / 2
                # Half a step of 1/127 of the largest number on each rank, on each node and in the end.
                np.testing.assert_allclose(out[:5000], want, atol=3 * 0.51 / 127 * world.size)
                np.testing.assert_array_equal(out[5000:], 0)


@pytest.mark.mpi(ranks=[1, 2, 4], timeout=60)
def test_buckets_of_several_gradients_take_turns() -> None:
    paths, shapes = ["a", "b", "c", "d", "e"], [(3, 5), (), (700, 3), (0,), (33,)]
    with World.open(ranks_per_node=2) as world:
        for name, algorithm in claims():
            codec = codec_by_name(name)
            buckets = plan_buckets(paths, shapes, 0.002, codec.block)
            assert len(buckets) > 1 and any(len(b.slots) > 1 for b in buckets)
            with Allreduce(world, codec, buckets, algorithm, gather_below=1000) as allreduce:
                for turn in range(5):
                    for number, bucket in enumerate(buckets):
                        sources = [
                            np.full(slot.shape, (world.rank + 1) * 2.0 ** (slot.index - turn), np.float32)
                            for slot in bucket.slots
                        ]
                        out = np.full(bucket.length, np.nan, np.float32)
                        allreduce.mean(number, sources, out)
                        mean = (world.size + 1) / 2
                        for slot in bucket.slots:
                            got = out[slot.offset : slot.offset + slot.numel]
                            want = mean * 2.0 ** (slot.index - turn)
                            np.testing.assert_allclose(got, want, rtol=0.1 if codec.block > 1 else 2e-2)
                            out[slot.offset : slot.offset + slot.numel] = 0
                        np.testing.assert_array_equal(out, 0)  # nothing of another bucket lies between the slots
                assert allreduce.stats.calls == 5 * len(buckets)


@pytest.mark.mpi(ranks=[2, 4], timeout=60)
def test_stats_count_time_and_bytes() -> None:
    n = 64 * 400
    with World.open(ranks_per_node=2) as world:
        codec = codec_by_name("fp16")
        bucket = flat_bucket(n)
        values, out = rank_values(world.rank, n).clip(-1e3, 1e3), np.empty(n, np.float32)
        for algorithm in ("shared", "pieces", "native"):
            with Allreduce(world, codec, [bucket], algorithm) as allreduce:
                allreduce.mean(0, [values], out)
                before = allreduce.stats.snapshot()
                allreduce.mean(0, [values], out)
                spent = allreduce.stats.since(before)
                assert spent.calls == 1
                assert spent.encode > 0 and spent.wait > 0 and spent.decode > 0
                assert spent.exchange_seconds == spent.encode + spent.move + spent.reduce + spent.decode
                if algorithm == "shared":
                    assert spent.shared_bytes == 2 * n
                    assert spent.network_bytes == (n if world.size == 4 else 0)  # half a piece there, half back
                else:
                    assert spent.network_bytes == 2 * (2 * n * (world.size - 1) // world.size)
                allreduce.stats.reset()
                assert allreduce.stats.sent_bytes == allreduce.stats.calls == 0


@pytest.mark.mpi(ranks=[1, 2], timeout=60)
def test_every_phase_goes_to_the_timeline() -> None:
    with World.open() as world:
        spans: list[tuple[str, float, float]] = []
        bucket = flat_bucket(100_000)
        with Allreduce(
            world, codec_by_name("fp16"), [bucket], "pieces", span=lambda *span: spans.append(span)
        ) as allreduce:
            allreduce.mean(0, [rank_values(world.rank, 100_000)], np.empty(bucket.length, np.float32))
        assert [name for name, _, _ in spans] == ["encode", "wait", "move", "reduce", "move", "decode"]
        assert all(start <= end for _, start, end in spans)
        assert all(end == start for (_, _, end), (_, start, _) in pairwise(spans))


@pytest.mark.mpi(ranks=[2], timeout=60)
def test_impossible_settings_are_refused() -> None:
    with World.open() as world:
        with pytest.raises(UserError, match=r"'ring'.*shared, pieces, native"):
            Allreduce(world, codec_by_name("fp16"), [flat_bucket(3)], "ring")
        with (
            Allreduce(world, codec_by_name("fp16"), [flat_bucket(3)]) as allreduce,
            pytest.raises(ValueError, match="16 numbers"),
        ):
            allreduce.mean(0, [np.ones(3, np.float32)], np.empty(3, np.float32))


@pytest.mark.mpi(ranks=[2, 4], timeout=60)
def test_bfloat16_and_half_gradients_go_to_the_wire_as_they_are() -> None:
    with World.open() as world:
        for name in ("fp16", "bf16"):
            dtype = reference_dtype(name)
            values = [rank_values(rank, 1001).clip(-1e4, 1e4).astype(dtype) for rank in range(world.size)]
            got = averaged(world, name, "shared", values[world.rank])
            want = mean_over_ranks(name, [v.astype(np.float32) for v in values], [world.size])
            np.testing.assert_array_equal(got, want)


def reference_dtype(name: str) -> np.dtype:
    """The NumPy type of a codec's numbers."""
    import ml_dtypes

    return np.dtype({"fp16": np.float16, "bf16": ml_dtypes.bfloat16}[name])
