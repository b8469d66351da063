"""The choice of the bucket size: the same on every rank, from times of the exchange on those ranks."""

from __future__ import annotations

import numpy as np
import pytest

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.world import World
from dist_mp.exchange.bucket_size import choose, sweep_bucket_sizes


def test_smallest_size_near_the_fastest_wins() -> None:
    assert choose({1.0: 2.0, 2.0: 1.04, 4.0: 1.0, 8.0: 1.5}) == 2.0
    assert choose({1.0: 2.0, 2.0: 1.06, 4.0: 1.0, 8.0: 0.99}) == 4.0
    assert choose({8.0: 3.0}) == 8.0


@pytest.mark.mpi(ranks=[1, 2, 3], timeout=60)
def test_ranks_agree_and_equal_plans_are_measured_once() -> None:
    shapes = [(1000, 700), (700,), (200_000,), (3,)]
    paths = [f"v{i}" for i in range(len(shapes))]
    with World.open() as world:
        for name, algorithm in (("fp16", "shared"), ("dynamic_tree", "pieces"), ("fp32", "native")):
            codec = codec_by_name(name)
            sweep = sweep_bucket_sizes(world, codec, paths, shapes, np.float16, algorithm, rounds=3)
            assert len(set(world.allgather((sweep.mib, *sweep.seconds.items())))) == 1
            # 2.7 MiB and 0.8 MiB: from 4 MiB on all lies in one bucket, below the large gradient has one to itself.
            assert list(sweep.seconds) == [1.0, 4.0]
            assert all(seconds > 0 for seconds in sweep.seconds.values())
            assert sweep.mib == choose(sweep.seconds)
            assert f"{sweep.mib:g} MiB chosen of 1 MiB" in str(sweep)
