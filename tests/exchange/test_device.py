"""The exchange on a GPU, in Numba's simulator under a real mpirun: bit for bit what the host's algorithms give."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

PATHS, SHAPES = ["a", "b", "c", "d"], [(9, 7), (), (0,), (130,)]
"""Gradients that leave gaps in the bucket, with one of no numbers."""
PIECES, SMALL = {"gather_below": 0}, {"gather_below": 0, "max_bytes": 512}


def simulate() -> None:
    """Choose the simulator, before Numba is imported."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    np.seterr(all="ignore")  # kernels run as Python; overflow to infinity is what a half does


def gradients(rank: int, turn: int, dtype: Any) -> list[np.ndarray]:
    """Numbers of many sizes, other ones on every rank."""
    rng = np.random.default_rng([rank, turn])
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    return [(rng.standard_normal(n) * 10.0 ** rng.integers(-9, 6, n)).astype(dtype) for n in sizes]


Case = tuple[str, int, Any, str, dict[str, int], dict[str, Any]]
"""Codec, block, type of the gradients, algorithm, limits, other settings."""


def cases_of_two_levels() -> Iterator[Case]:
    """What goes through both levels where there are several nodes."""
    yield "fp16", 16, np.float32, "shared", PIECES, {}
    yield "dynamic_tree", 16, np.float32, "shared", SMALL, {}
    yield "dynamic_uniform", 16, np.float32, "shared", PIECES, {"stochastic": True, "seed": 3}


def cases() -> Iterator[Case]:
    """All there is to try on one node."""
    import ml_dtypes

    yield from cases_of_two_levels()
    yield "fp16", 16, np.float16, "pieces", {}, {}
    yield "fp32", 16, np.float32, "pieces", SMALL, {}
    yield "bf16", 16, ml_dtypes.bfloat16, "shared", {}, {}
    yield "fp8_e4m3", 16, np.float16, "pieces", PIECES, {}
    yield "one_bit", 16, np.float32, "shared", PIECES, {"error_feedback": True}
    yield "linear", 0, np.float32, "shared", PIECES, {}


def check(world: Any, cases: Iterator[Case], *, direct: bool) -> None:
    """A step of each case, or two where there is something to carry over, on the device and on the host."""
    from dist_mp.codec.cuda_device import CudaDevice
    from dist_mp.codec.table import codec_by_name
    from dist_mp.exchange.allreduce import Allreduce
    from dist_mp.exchange.device import DeviceMean
    from dist_mp.exchange.placement import GpuPath
    from dist_mp.exchange.plan import plan_buckets

    device = CudaDevice(0)
    for name, block, dtype, algorithm, limits, settings in cases:
        settings = dict(settings)
        where = f"{name} {block} {algorithm} {limits} {settings} direct {direct} nodes {world.node_sizes}"
        codec = codec_by_name(name, block, stochastic=settings.pop("stochastic", False))
        some = slice(2) if codec.whole else slice(None)  # whose buckets are larger
        plan = plan_buckets(PATHS[some], SHAPES[some], 1.0, codec.block)
        host = Allreduce(world, codec, plan, algorithm, **limits, **settings)
        ours = Allreduce(world, codec, plan, algorithm, gpu=GpuPath(device, direct), **limits, **settings)
        assert isinstance(ours._algorithm, DeviceMean)
        out = device.empty(plan[0].length, np.float32)
        want = np.empty(plan[0].length, np.float32)
        for turn in range(2 if settings else 1):
            own = gradients(world.rank, turn, dtype)
            bits = [g.view(np.uint16) if g.dtype.itemsize == 2 and g.dtype != np.float16 else g for g in own]
            want[:] = np.nan
            out.copy_to_device(want)
            host.step = ours.step = turn
            host.loss_scale = ours.loss_scale = 4.0
            host.mean(0, [own[slot.index] for slot in plan[0].slots], want)
            moves, waits = ours._algorithm.moves, device.synchronisations
            ours.mean(0, [device.from_host(bits[slot.index]) for slot in plan[0].slots], out)
            np.testing.assert_array_equal(out.copy_to_host(), want, err_msg=f"{where} turn {turn}")
            # One wait before each transfer, and one before the mean is handed over.
            moves, waits = ours._algorithm.moves - moves, device.synchronisations - waits
            assert waits == moves + 1, where
            assert (moves == 0) == (world.size == 1 and algorithm == "shared"), where
            applied = turn == 0
            host.settle(applied)
            ours.settle(applied)
        for residual, expected in zip(ours.residuals(), host.residuals(), strict=True):
            np.testing.assert_array_equal(residual, expected, err_msg=where)
        host.close()
        ours.close()


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=240)
def test_means_in_the_simulator_have_the_bits_of_the_host() -> None:
    simulate()
    from dist_mp.comm.world import World

    with World.open() as world:
        check(world, cases(), direct=False)
        size = world.size
    for ranks_per_node in {1: [1], 2: [1], 3: [2], 4: [2, 3]}[size]:  # also unequal nodes
        with World.open(ranks_per_node) as world:
            check(world, cases_of_two_levels(), direct=ranks_per_node != 2)
            if world.node_sizes == (3, 1):  # the lone rank's scales pass through its node's level as they are
                check(world, iter([("linear", 0, np.float32, "shared", PIECES, {})]), direct=False)
