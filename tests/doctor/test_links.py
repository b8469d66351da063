"""Links between real ranks, on nodes of two."""

from __future__ import annotations

import pytest


@pytest.mark.mpi(ranks=[1, 2, 4], timeout=60)
def test_all_ranks_know_all_links(ranks: int) -> None:
    from dist_mp.comm.world import World
    from dist_mp.doctor.links import measure_links

    with World.open(ranks_per_node=2) as world:
        links = measure_links(world)
        wanted = {
            1: [],
            2: [(0, 1, "within a node")],
            4: [(0, 1, "within a node"), (2, 3, "within a node"), (0, 2, "between nodes")],
        }
        assert [(link.first, link.second, link.kind) for link in links] == wanted[ranks]
        assert all(link.latency_us > 0 and link.gb_per_s > 0 for link in links)
        assert all(other == links for other in world.allgather(links))
