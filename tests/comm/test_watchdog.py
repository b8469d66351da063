"""A rank that does not come: the job ends, and says who, where and in which step."""

from __future__ import annotations

import re
import sys

import pytest

from dist_mp.comm.watchdog import Place, Watchdog, missing_ranks
from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine
from tests.harness.guard import Finished, run_guarded
from tests.harness.runner import ROOT, child_environment

LIMIT = 3.0


def run(ranks: int, how: str, culprit: int, ranks_per_node: int = 0, limit: float = LIMIT) -> Finished:
    """Run the job; it must end by itself and leave nothing behind."""
    program = [sys.executable, "-m", "tests.comm.stuck", how, str(culprit), str(ranks_per_node), str(limit)]
    command = job_command(find_mpirun(), ranks, program, machine=this_machine())
    environment = child_environment({**command.environment, "OMPI_MCA_mpi_yield_when_idle": "1"})
    finished = run_guarded(command.argv, timeout=40, cwd=ROOT, env=environment)
    said = f"{finished.stdout}\n{finished.stderr}"
    assert not finished.timed_out, said
    assert not finished.left, finished.left
    return finished


def errors(finished: Finished) -> list[str]:
    """The lines in which a rank speaks."""
    return [line for line in finished.stderr.splitlines() if line.startswith("error:")]


@pytest.mark.parametrize(
    ("how", "ranks", "culprit", "ranks_per_node", "words"),
    [
        ("python", 2, 0, 0, r"rank 0 \(last seen after the exchange of bucket 1 of 2 of step 2, for \d+ s\)"),
        ("python", 3, -1, 0, r"rank 2 \(last seen after the exchange of bucket 1 of 2 of step 2, for \d+ s\)"),
        ("python", 4, 1, 2, r"rank 1 \(last seen after the exchange of bucket 1 of 2 of step 2, for \d+ s\)"),
        ("held", 3, 0, 0, r"rank 0 \(does not answer\)"),
        ("stopped", 4, -1, 2, r"rank 3 \(does not answer\)"),
    ],
    ids=["first", "last", "on-two-nodes", "holds-python", "stopped"],
)
def test_a_stuck_rank_is_named_and_ends_the_job(
    how: str, ranks: int, culprit: int, ranks_per_node: int, words: str
) -> None:
    finished = run(ranks, how, culprit, ranks_per_node)
    assert finished.rc not in (0, None)
    assert "the end was reached" not in finished.stdout
    assert finished.seconds < 30
    (line,) = errors(finished)
    waiting = min({0, 1, 2} - {culprit % ranks})
    pattern = (
        rf"error: rank {waiting} has waited \d+ s in the exchange of bucket 2 of 2 of step 2 for {words}; "
        r"the job is ended \(exchange\.timeout_seconds = 3\)"
    )
    assert re.fullmatch(pattern, line), line


def test_a_rank_that_misses_the_agreement_is_named() -> None:
    finished = run(2, "agree", 1)
    assert finished.rc not in (0, None)
    (line,) = errors(finished)
    assert (
        "in the agreement on the next step of step 1 for rank 1 (last seen after the exchange of bucket 2 of 2" in line
    )


@pytest.mark.parametrize("limit", [6.0, 0.0], ids=["within", "never"])
def test_a_rank_that_comes_late_is_waited_for(limit: float) -> None:
    finished = run(2, "late", 1, limit=limit)
    assert finished.rc == 0, finished.stderr
    # mpirun may put one rank's line before the end of another's.
    assert finished.stdout.count("the end was reached") == 2
    assert errors(finished) == []


def test_missing_ranks_in_words() -> None:
    here = Place(7, True, "a barrier", 3, 600.0)
    behind = Place(6, False, "a barrier", None, 601.4)
    inside = Place(6, True, "the exchange", 2, 601.6)
    assert missing_ranks(here, [1, 2, 3], {1: here, 2: behind, 3: inside}) == (
        "rank 2 (last seen after a barrier, for 601 s), rank 3 (in the exchange of step 2, for 602 s)"
    )
    assert missing_ranks(here, [1], {1: here}).startswith("no rank: all have come")
    many = missing_ranks(here, list(range(1, 30)), {})
    assert many.startswith("rank 1 (does not answer), ") and many.endswith("rank 8 (does not answer) and 21 more")


def test_a_library_without_threads_ends_the_job_without_names(capsys: pytest.CaptureFixture[str]) -> None:
    statuses: list[int] = []
    watchdog = Watchdog(1, statuses.append)
    with watchdog("a barrier"):
        watchdog.limit = 0.0
        watchdog._end_the_job(watchdog.place(), grace=0.0)
    assert statuses == [1]
    assert "MPI_THREAD_MULTIPLE is not there" in capsys.readouterr().err


def test_places_are_counted() -> None:
    watchdog = Watchdog(0, lambda status: None)
    assert watchdog.place()[:3] == (0, False, "")
    watchdog.step = 5
    with watchdog("a barrier"):
        assert watchdog.place()[:4] == (1, True, "a barrier", 5)
    with pytest.raises(ZeroDivisionError), watchdog("a gathering"):
        1 / 0  # noqa: B018
    assert watchdog.place()[:3] == (2, False, "a gathering")
    watchdog.stop()
    watchdog.stop()
