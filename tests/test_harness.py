"""The harness itself: what it says of a rank that fails, dies, hangs or leaves a process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.harness.guard import TAG, run_guarded
from tests.harness.runner import RankError, run_body


@pytest.mark.mpi
def test_body_runs_on_every_rank(ranks: int, tmp_path: Path) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert world.size == ranks
    (tmp_path / f"{world.rank}").write_text(str(os.getpid()))
    world.Barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(rank) for rank in range(ranks)]
    assert world.allreduce(world.rank + 1) == ranks * (ranks + 1) // 2


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("word", ["left", "right"])
def test_other_parameters_reach_the_ranks(word: str) -> None:
    assert word in ("left", "right")


class TestInAClass:
    @pytest.mark.mpi(ranks=[2])
    def test_method(self, ranks: int) -> None:
        from mpi4py import MPI

        assert MPI.COMM_WORLD.size == ranks


@pytest.mark.mpi(ranks=[2])
def test_skip_on_every_rank() -> None:
    pytest.skip("every rank skips this one, which shows as a skipped test")


BODIES = """
import os, subprocess, sys, time

def raises_on_last(ranks):
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    if rank == ranks - 1:
        wanted = rank + 40
        assert wanted == 0, "seen"
    MPI.COMM_WORLD.Barrier()

def raises_everywhere(ranks):
    from mpi4py import MPI
    raise RuntimeError(f"from rank {MPI.COMM_WORLD.rank}")

def raises_before_mpi(ranks):
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "0":
        raise OSError("before mpi")
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()

def hangs_on_last(ranks):
    from mpi4py import MPI
    print("about to wait", MPI.COMM_WORLD.rank, flush=True)
    if MPI.COMM_WORLD.rank == ranks - 1:
        time.sleep(3600)
    MPI.COMM_WORLD.Barrier()

def dies_on_last(ranks):
    from mpi4py import MPI
    if MPI.COMM_WORLD.rank == ranks - 1:
        os._exit(7)
    MPI.COMM_WORLD.Barrier()

def leaves_a_process(ranks):
    from mpi4py import MPI
    if MPI.COMM_WORLD.rank == 0:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3601)"], start_new_session=True)
    MPI.COMM_WORLD.Barrier()
"""


def failure(folder: Path, function: str, ranks: int, timeout: float = 60.0) -> str:
    """What the harness says of a body of BODIES."""
    file = folder / "bodies.py"
    file.write_text(BODIES)
    call = {"file": str(file), "module": "bodies", "class": "", "function": function, "arguments": {"ranks": ranks}}
    with pytest.raises(RankError) as caught:
        run_body({**call, "ranks": ranks, "timeout": timeout}, folder)
    for process in psutil.process_iter():
        try:
            assert str(folder) not in " ".join(process.cmdline()), f"survivor: {process}"
        except psutil.Error:
            continue
    return str(caught.value)


def test_traceback_of_the_failing_rank_only(tmp_path: Path) -> None:
    said = failure(tmp_path, "raises_on_last", 3)
    assert "--- rank 2 of 3 ---" in said and "AssertionError: seen" in said and "wanted = 42" in said
    assert "rank 0 of 3" not in said and "rank 1 of 3" not in said


def test_traceback_of_each_failing_rank(tmp_path: Path) -> None:
    said = failure(tmp_path, "raises_everywhere", 3)
    assert all(f"RuntimeError: from rank {rank}" in said for rank in range(3))


def test_failure_before_mpi_ends_the_others(tmp_path: Path) -> None:
    start = time.monotonic()
    said = failure(tmp_path, "raises_before_mpi", 2)
    assert "OSError: before mpi" in said
    assert time.monotonic() - start < 30


def test_hang_ends_at_the_limit_and_says_where(tmp_path: Path) -> None:
    start = time.monotonic()
    said = failure(tmp_path, "hangs_on_last", 3, timeout=8.0)
    assert 8 <= time.monotonic() - start < 25
    assert "the limit of 8 s is over; no verdict from ranks [2]" in said or "no verdict from ranks [0, 1, 2]" in said
    assert "in hangs_on_last" in said and "about to wait 2" in said


def test_rank_that_dies_is_named(tmp_path: Path) -> None:
    said = failure(tmp_path, "dies_on_last", 2)
    assert "ended without a verdict" in said and "1]" in said


def test_process_left_behind_is_ended_and_reported(tmp_path: Path) -> None:
    said = failure(tmp_path, "leaves_a_process", 2)
    assert "left behind: " in said and "time.sleep(3601)" in said


def test_guard_ends_an_orphan_in_another_session(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(p.pid))\n"
        "time.sleep(3600)\n"
    )
    finished = run_guarded([sys.executable, "-c", script], timeout=3.0)
    assert finished.timed_out and finished.rc == -signal.SIGKILL
    pid = int(note.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # init reaps it


def test_guard_returns_output_status_and_tag(tmp_path: Path) -> None:
    script = f"import os, sys; print(os.environ['{TAG}'], os.getcwd()); sys.stderr.write('err'); sys.exit(5)"
    finished = run_guarded([sys.executable, "-c", script], timeout=30.0, cwd=tmp_path)
    assert (finished.rc, finished.stderr, finished.timed_out, finished.left) == (5, "err", False, [])
    assert finished.stdout.split()[1] == str(tmp_path) and len(finished.stdout.split()[0]) == 32


def test_wrong_marker_argument_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.mpi(rank=[1])\ndef test_it(): pass\n")
    root = Path(__file__).resolve().parents[1]
    program = [sys.executable, "-m", "pytest", "-q", "-c", str(root / "pyproject.toml"), "--rootdir", str(root)]
    answer = subprocess.run(
        [*program, "-p", "tests.conftest", str(tmp_path)], capture_output=True, text=True, timeout=60, cwd=root
    )
    assert answer.returncode != 0
    assert "mpi takes ranks=[...] and timeout=seconds only" in answer.stdout + answer.stderr
