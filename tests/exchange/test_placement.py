"""GPU transfers asked of an MPI library without them (conda-forge/openmpi-feedstock#83, open-mpi/ompi#7963)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dist_mp.exchange.placement import VIRTUAL
from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine
from tests.conftest import RunCli
from tests.harness.guard import Finished, run_guarded
from tests.harness.runner import ROOT, child_environment

WITHOUT_CUDA = r"(Open MPI|MPICH) \S+: MPIX_Query_cuda_support says no[^;\n]*"


def run(cuda_aware: str, algorithm: str = "shared") -> Finished:
    """Two ranks with a simulated GPU each."""
    program = [sys.executable, "-m", "tests.exchange.placed", cuda_aware, algorithm]
    command = job_command(find_mpirun(), 2, program, machine=this_machine())
    finished = run_guarded(command.argv, timeout=60, cwd=ROOT, env=child_environment(command.environment))
    assert not finished.timed_out and not finished.left, finished
    return finished


def test_auto_warns_once_and_stages() -> None:
    done = run("auto")
    assert done.rc == 0, done.stderr
    warning = rf"gradients on GPUs go to MPI through pinned host memory: {WITHOUT_CUDA}"
    assert len(re.findall(warning, done.stderr)) == 1, done.stderr
    fact = rf"step 1: mean 1\.5, direct False, on GPUs, staged through pinned host memory \({WITHOUT_CUDA}\)"
    assert re.fullmatch(fact, done.stdout.strip()), done.stdout


def test_off_stages_without_asking() -> None:
    done = run("off")
    assert done.rc == 0 and "pinned" not in done.stderr, done.stderr
    assert done.stdout.strip().endswith("staged through pinned host memory (cuda_aware: off)"), done.stdout


def test_virtual_workers_go_through_host_memory_and_say_so() -> None:
    done = run("auto", VIRTUAL)
    reason = "where TensorFlow copies them: virtual workers hand over their gradients in host memory"
    assert done.rc == 0 and done.stdout.strip() == f"host memory, gradients go through host memory, {reason}", done


def test_require_ends_before_the_first_step() -> None:
    done = run("require")
    assert done.rc == 2 and "step 1" not in done.stdout, done
    begin = r"error: exchange\.cuda_aware is require, but GPU memory cannot go to MPI as it is: "
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and re.fullmatch(rf"{begin}{WITHOUT_CUDA}; use .*", errors[0]), done.stderr


def test_require_ends_a_run_on_this_machine(run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli(["run", "-n", "2", "quickstart", "exchange.cuda_aware=require", "data.shots=12"], timeout=120)
    assert done.rc == 2, done
    assert "no rank has a GPU; " in done.stderr and re.search(WITHOUT_CUDA, done.stderr), done.stderr
    assert len(re.findall("exchange.cuda_aware is require", done.stderr)) == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.mpi(ranks=[1, 3], timeout=60)
def test_ranks_without_a_gpu_average_in_host_memory() -> None:
    from dist_mp.comm.world import World
    from dist_mp.errors import UserError
    from dist_mp.exchange.placement import Placement, place

    with World.open() as world:
        assert place(world, None, "shared", "auto") == Placement(None)
        assert place(world, None, "shared", "off") == Placement(None)
        last = world.size - 1
        if last:  # one rank lacks what the others have: here nobody can use it, and all say so
            some = place(world, None if world.rank == last else 0, "shared", "auto")
            assert some.gpu is None and some.fact == some.warning and "rank 0 has a GPU that numba.cuda" in some.fact
        with pytest.raises(UserError, match="no rank has a GPU"):
            place(world, None, "shared", "require")
