"""Runs the body of a test on every rank of a real mpirun and turns what came back into one verdict."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dist_mp.launch.mpirun import Mpirun, find_mpirun, job_command, this_machine
from tests.harness.guard import Finished, run_guarded

ROOT = Path(__file__).resolve().parents[2]
SHOWN_LINES = 60
"""Lines of a rank's own output that a failure shows."""


class RankError(AssertionError):
    """A test failed on at least one rank; the text has each failing rank's traceback."""


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment, with this checkout importable from any folder."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return {**os.environ, "PYTHONPATH": path, **more}


def run_body(call: Mapping[str, Any], folder: Path, mpirun: Mpirun | None = None) -> None:
    """Run one body on ``call["ranks"]`` ranks.

    `call` has file, module, class, function, arguments, ranks and timeout (seconds). Raises :class:`RankError` if
    a rank raises, dies, hangs past the limit or leaves a process behind; skips if every rank skipped.
    """
    with open(folder / "call.pickle", "wb") as file:
        pickle.dump(dict(call), file)
    ranks = call["ranks"]
    program = [sys.executable, "-m", "tests.harness.child", str(folder)]
    command = job_command(mpirun or find_mpirun(), ranks, program, machine=this_machine())
    # Other jobs may share the cores, so a waiting rank lets go of its core.
    patience = {"OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1"}
    environment = child_environment({**patience, **command.environment})
    finished = run_guarded(command.argv, timeout=call["timeout"], cwd=ROOT, env=environment)
    verdict(finished, ranks, call["timeout"], folder)


def verdict(finished: Finished, ranks: int, timeout: float, folder: Path) -> None:
    """Raise or skip by the ranks' reports in `folder` and by how mpirun ended."""
    reports: dict[int, dict[str, str]] = {}
    for rank in range(ranks):
        written = folder / f"rank-{rank:03d}.json"
        if written.exists():
            reports[rank] = json.loads(written.read_text())
    failed = [rank for rank, report in reports.items() if report["outcome"] == "failed"]
    missing = [rank for rank in range(ranks) if rank not in reports]
    skipped = [rank for rank, report in reports.items() if report["outcome"] == "skipped"]
    if not (failed or missing or finished.timed_out or finished.rc or finished.left):
        if len(skipped) == ranks:
            pytest.skip(reports[0]["text"])
        if skipped:
            raise RankError(f"ranks {skipped} skipped, the others did not")
        return
    parts = []
    if finished.timed_out:
        parts.append(f"the limit of {timeout:g} s is over; no verdict from ranks {missing}")
    elif missing and not failed:
        parts.append(f"ranks {missing} ended without a verdict, mpirun with status {finished.rc}")
    elif not failed and finished.rc:
        parts.append(f"mpirun ended with status {finished.rc} after every rank had passed")
    if finished.left:
        parts.append("left behind: " + "; ".join(finished.left))
    for rank in failed:
        parts.append(f"--- rank {rank} of {ranks} ---\n{reports[rank]['text']}")
    for rank in sorted({*failed, *missing}):
        for kind, title in (("stacks", "stood at"), ("out", "printed")):
            text = _tail(folder / f"rank-{rank:03d}.{kind}")
            if text:
                parts.append(f"--- rank {rank} of {ranks} {title} ---\n{text}")
    for name, text in (("stdout", finished.stdout), ("stderr", finished.stderr)):
        if text.strip():
            parts.append(f"--- mpirun {name} ---\n{text.strip()}")
    raise RankError("\n".join(parts))


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").strip().splitlines()[-SHOWN_LINES:])
