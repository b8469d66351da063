"""One rank fails: the job ends within 10 s, with the right status and words."""

from __future__ import annotations

import sys

import pytest

from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine
from tests.harness.guard import Finished, run_guarded
from tests.harness.runner import ROOT, child_environment

LIMIT = 10.0
"""Seconds from the start of the job to its end."""


def run(ranks: int, how: str, when: str, culprit: int, *, limit: float = LIMIT) -> Finished:
    """Run the failing job; it must end in time and leave nothing behind."""
    program = [sys.executable, "-m", "tests.comm.failing", how, when, str(culprit)]
    command = job_command(find_mpirun(), ranks, program, machine=this_machine())
    environment = child_environment({**command.environment, "OMPI_MCA_mpi_yield_when_idle": "1"})
    finished = run_guarded(command.argv, timeout=60, cwd=ROOT, env=environment)
    said = f"{finished.stdout}\n{finished.stderr}"
    assert not finished.timed_out, said
    assert not finished.left, finished.left
    assert finished.seconds < limit, (finished.seconds, said)
    assert "the end was reached" not in finished.stdout
    return finished


def check_status(finished: Finished, status: int) -> None:
    """Hydra, MPICH's mpirun, may return the status of a rank that it killed itself (9); the launcher sorts that out."""
    killed = [] if find_mpirun().vendor == "Open MPI" else [9]
    assert finished.rc in [status, *killed], finished.stderr


@pytest.mark.parametrize("when", ["before", "in", "after"])
@pytest.mark.parametrize("culprit", [0, -1], ids=["first", "last"])
def test_an_exception_ends_the_job_with_its_traceback(culprit: int, when: str) -> None:
    finished = run(3, "raise", when, culprit)
    rank = culprit % 3
    check_status(finished, 1)
    assert f"[rank {rank}] RuntimeError: rank {rank} broke\n" in finished.stderr
    assert f"[rank {rank}] Traceback (most recent call last):\n" in finished.stderr
    assert f"[rank {(rank + 1) % 3}]" not in finished.stderr


@pytest.mark.parametrize("culprit", [0, -1], ids=["first", "last"])
def test_an_exception_in_a_thread_ends_the_job(culprit: int) -> None:
    finished = run(2, "thread", "in", culprit)
    rank = culprit % 2
    check_status(finished, 1)
    assert f"[rank {rank}] RuntimeError: rank {rank} broke in a thread\n" in finished.stderr


@pytest.mark.parametrize("culprit", [0, -1], ids=["first", "last"])
def test_an_exception_in_a_host_call_ends_the_job(culprit: int) -> None:
    finished = run(2, "raise", "graph", culprit, limit=3 * LIMIT)  # TensorFlow's import is no part of the end
    rank = culprit % 2
    check_status(finished, 1)
    assert f"rank {rank} broke" in finished.stderr
    assert f"[rank {rank}] Traceback (most recent call last):\n" in finished.stderr


@pytest.mark.parametrize("culprit", [0, -1], ids=["first", "last"])
def test_sys_exit_ends_the_job_with_its_status(culprit: int) -> None:
    check_status(run(2, "exit", "in", culprit), 7)


def test_one_rank_alone_ends_as_well() -> None:
    finished = run(1, "raise", "in", 0)
    check_status(finished, 1)
    assert "[rank 0] RuntimeError: rank 0 broke\n" in finished.stderr


def said_by_us(finished: Finished) -> list[str]:
    """The lines on standard error that speak of the mistake."""
    return [line for line in finished.stderr.splitlines() if "config.yaml" in line]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_mistake_found_by_all_ranks_is_one_line_and_status_2(ranks: int) -> None:
    finished = run(ranks, "all-user", "before", 0)
    check_status(finished, 2)
    assert said_by_us(finished) == ["error: config.yaml: units must be positive, got -1"]
    assert "Traceback" not in finished.stderr


def test_a_mistake_found_by_the_last_rank_names_it() -> None:
    finished = run(3, "user", "in", -1)
    check_status(finished, 2)
    assert said_by_us(finished) == ["error (rank 2): config.yaml: units must be positive, got -1"]
    assert "Traceback" not in finished.stderr
