"""Whole jobs that are killed, asked to stop, or hang: resumed, they are the run that was not disturbed."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kill_campaign import disturb, disturb_once, result, start, undisturbed, victim


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("victims")


@pytest.fixture(scope="module")
def wanted(folder: Path) -> tuple[Any, ...]:
    """Weights and steps of the undisturbed run."""
    return undisturbed(folder)


@pytest.mark.timeout(900)
def test_kills_and_requests_at_random_moments(folder: Path, wanted: tuple[Any, ...]) -> None:
    """SIGKILL of a rank and SIGTERM of the launcher in turn, in one run; no process is left behind."""
    rng = random.Random(5)
    steps = len(wanted[1])
    kinds = ["kill", "term"] * 2
    moments = [(kind, (steps * n + rng.randrange(steps)) // (len(kinds) + 1)) for n, kind in enumerate(kinds)]
    run, became = disturb([("kill", -1), ("term", -1), *moments], rng, folder, 0)
    assert not [word for word in became if "UNEXPECTED" in word or "left" in word], became
    assert sum(word.startswith("hit") for word in became) == 6, became
    assert result(run) == wanted
    assert len(list((run / "checkpoints").glob("step-*"))) in (3, 4)  # the newest ones, and the best one


@pytest.mark.timeout(400)
def test_a_rank_that_hangs_ends_the_job(folder: Path, wanted: tuple[Any, ...]) -> None:
    """SIGSTOP of a rank past the limit: the others name it and end the job; resumed, it is the same run."""
    run, became = disturb([("stop", len(wanted[1]) // 2)], random.Random(2), folder, 1)
    assert became == ["hit, status 1"]
    assert result(run) == wanted
    said = (folder / "output.log").read_text()
    assert re.search(r"error: rank \d has waited \d+ s in .* of step \d+ for rank \d \(does not answer\)", said)


@pytest.mark.timeout(400)
def test_restarts_go_on_by_themselves(folder: Path, wanted: tuple[Any, ...]) -> None:
    run, tag = folder / "restarted", f"restarts-{folder.name}"
    with open(folder / "restarts.log", "wb") as log:
        job = start([*victim(run), "--restarts", "2"], folder, tag, log)
        became = disturb_once("kill", len(wanted[1]) // 2, random.Random(3), job, run, tag)
    said = (folder / "restarts.log").read_text()
    assert became == "hit, status 0", said
    assert result(run) == wanted
    assert "dist-mp: starting 2 ranks again (up to 2 times more)" in said
