"""Shared memory of a node."""

from __future__ import annotations

import pytest

from dist_mp.comm.window import ALIGNMENT, SharedWindow
from dist_mp.comm.world import World


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_ranks_of_a_node_see_each_other_and_no_one_else() -> None:
    for ranks_per_node in (None, 2):
        with World.open(ranks_per_node) as world:
            for nbytes in (0, 1, 1000, 1 << 20):
                window = SharedWindow(world, nbytes)
                assert [len(s) for s in window.segments] == [nbytes] * world.local_size
                assert all(s.ctypes.data % ALIGNMENT == 0 for s in window.segments if nbytes)
                assert not any(s.any() for s in window.segments)
                window.wait()  # all have seen the zeros
                window.segments[world.local_rank][:] = 10 * world.node + world.local_rank + 1
                window.wait()
                for rank, segment in enumerate(window.segments):
                    assert (segment == 10 * world.node + rank + 1).all()
                window.wait()
                # One rank writes into another's segment.
                neighbour = (world.local_rank + 1) % world.local_size
                window.segments[neighbour][:] = 100 + world.rank
                window.wait()
                left = (world.local_rank - 1) % world.local_size
                own = window.segments[world.local_rank]
                assert (own == 100 + world.rank - world.local_rank + left).all()
                window.wait()
                window.close()
                window.close()
                assert window.segments == ()
