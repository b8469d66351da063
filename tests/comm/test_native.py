"""Sums by MPI itself, with its own half type and with an operation of ours."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dist_mp.codec.half import add_into
from dist_mp.comm.native import NativeSum
from dist_mp.comm.world import World


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_sums_of_every_type_whole_and_in_parts() -> None:
    with World.open() as world:
        total = world.size * (world.size + 1) // 2
        for max_bytes in (2**31 - 1, 100):
            sums = NativeSum(world, add_into, add_into, max_bytes)
            for half_is_native in {sums.half_is_native, False}:
                sums.half_is_native = half_is_native
                half = ((world.rank + 1) * np.arange(200)).astype(np.float16)
                sums.sum_half(half.view(np.uint16))
                np.testing.assert_array_equal(half, (total * np.arange(200)).astype(np.float16))
            brain = ((world.rank + 1) * np.arange(25)).astype(ml_dtypes.bfloat16)
            sums.sum_bfloat16(brain.view(np.int16))
            np.testing.assert_array_equal(brain.astype(np.float32), total * np.arange(25))
            single = np.float32(world.rank + 1) * np.arange(200, dtype=np.float32)
            sums.sum_float32(single)
            np.testing.assert_array_equal(single, total * np.arange(200))
            assert sums.largest(-1.0 * world.rank) == 0.0
            assert sums.largest(np.inf if world.rank == world.size - 1 else 1.0) == np.inf
            sums.close()
