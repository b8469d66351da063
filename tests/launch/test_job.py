"""Jobs under the real mpirun: status, signals, and that nothing is left behind."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from dist_mp.launch.mpirun import find_mpirun
from tests.conftest import RunCli
from tests.launch.test_banner import LOST

RUN = """
import sys
from dist_mp.launch.job import run_job
from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine

program = [sys.executable, sys.argv[2], *sys.argv[3:]]
command = job_command(find_mpirun(), int(sys.argv[1]), program, machine=this_machine())
command.environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
sys.exit(run_job(command))
"""
RANK = """
import os, signal, sys, time
from mpi4py import MPI
signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # MPICH takes it for itself where nobody else has
world = MPI.COMM_WORLD
what, who = sys.argv[1], int(sys.argv[2])
print(f"hello {world.rank} of {world.size}", flush=True)
world.Barrier()
if world.rank == who:
    if what == "exit":
        sys.stderr.write("gone wrong\\n")
        sys.stderr.flush()
        os._exit(3)
    if what == "mistake":
        sys.stderr.write("error: a mistake\\n")
        sys.stderr.flush()
        world.Abort(2)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
if what != "fine":
    time.sleep(60)
"""


@pytest.fixture
def job(tmp_path: Path, run_cli: RunCli) -> RunCli:
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "rank.py").write_text(RANK)

    def run(ranks: int, *args: str, **more: object) -> object:
        return run_cli([str(ranks), "rank.py", *args], program=[sys.executable, "run.py"], timeout=40, **more)

    return run


def test_output_of_all_ranks_and_status_0(job: RunCli) -> None:
    done = job(3, "fine", "0")
    assert done.rc == 0
    # mpirun may put one rank's line before the end of another's.
    assert sorted(re.findall(r"hello \d of 3", done.stdout)) == ["hello 0 of 3", "hello 1 of 3", "hello 2 of 3"]
    assert len(done.stdout) == 3 * len("hello 0 of 3\n")
    assert done.stderr == ""


@pytest.mark.parametrize("who", [0, 2])
def test_a_rank_that_exits_ends_the_job_with_its_status(job: RunCli, who: int) -> None:
    done = job(3, "exit", str(who))
    # Hydra may report a rank that it killed itself, after the one that failed.
    assert done.rc == 3 if find_mpirun().vendor == "Open MPI" else done.rc in (3, 128 + signal.SIGKILL)
    assert done.seconds < 15
    lines = done.stderr.splitlines()
    assert lines[0] == "gone wrong"
    assert len(lines) == 2 and lines[1].startswith("dist-mp: ")


def test_a_mistake_is_one_line(job: RunCli) -> None:
    done = job(2, "mistake", "1")
    assert done.rc == 2
    assert done.stderr == "error: a mistake\n"


def test_a_killed_rank_is_named(job: RunCli) -> None:
    done = job(2, "kill", "1")
    assert done.rc == 128 + signal.SIGKILL
    assert done.seconds < 15
    assert "signal 9" in done.stderr and "out of memory" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks(job: RunCli, number: signal.Signals) -> None:
    done = job(2, "sleep", "-1", interrupt=(4.0, number))
    assert done.rc == 128 + number
    assert done.seconds < 25
    assert done.stderr == f"dist-mp: ended by {number.name}\n"


def test_death_of_the_launcher_ends_the_ranks(job: RunCli) -> None:
    """SIGKILL of dist-mp itself: the kernel tells mpirun, and mpirun ends its ranks; the guard finds no survivor."""
    done = job(2, "sleep", "-1", interrupt=(4.0, signal.SIGKILL), grace=15.0)
    assert done.rc == -signal.SIGKILL


def test_a_node_that_went_down_is_a_failure(tmp_path: Path, run_cli: RunCli) -> None:
    """Open MPI 5.0.11 says so and ends with status 0, as seen in tests/slurm; recorded here."""
    (tmp_path / "lost").write_bytes(LOST)
    program = """
import sys
from dist_mp.launch.job import run_job
from dist_mp.launch.mpirun import JobCommand
sys.exit(run_job(JobCommand(["cat", "lost"], {})))
"""
    done = run_cli(["-c", program], program=[sys.executable])
    assert (done.rc, done.stdout) == (1, "")
    assert done.stderr == "dist-mp: mpirun lost node n2: it went down, or its network did\n"
