"""How submitted jobs stand, and their logs as they grow."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dist_mp.errors import UserError
from dist_mp.launch.scheduler import JobState, find_scheduler
from dist_mp.launch.submitted import SubmittedJob

STATE_SECONDS = 5.0
"""How often the scheduler is asked while a log is followed."""


def job_states(job: SubmittedJob, job_id: str | None = None) -> list[JobState]:
    """The states of a job or of one of its runs; what its script wrote last, where the scheduler has forgotten it."""
    asked = job.current_id() if job_id in (None, job.job_id) else str(job_id)
    states = find_scheduler(job.scheduler).states(asked)
    if states:
        return states
    tasks: Sequence[int | None] = [job.task(asked)] if job.task(asked) or not job.tasks else range(1, job.tasks + 1)
    found = []
    for task in tasks:
        own = job.own_state(task)
        word, _, status = own.partition(" ")
        shown = {"ended": "completed" if status == "0" else "failed", "": "unknown"}.get(word, f"unknown, last {word}")
        reason = f"status {status}" if status else "the scheduler has forgotten it"
        found.append(JobState(asked if task is None or job.task(asked) else f"{asked}_{task}", shown, reason=reason))
    return found


def status_lines(jobs: Sequence[SubmittedJob], job_id: str | None = None) -> Iterator[str]:
    """A table of jobs; for a single one, its folder and its starts as well."""
    rows = [("job", "name", "state", "nodes", "time", "limit", "starts", "note")]
    for job in jobs:
        for state in job_states(job, job_id):
            starts = str(len(job.starts(job.task(state.job_id))))
            rows.append(
                (state.job_id, job.name, state.word, state.nodes, state.elapsed, state.limit, starts, state.reason)
            )
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if job_id is not None:
        (job,) = jobs
        yield ""
        yield f"folder  {job.task_folder(job.task(job_id))}"
        for path in job.logs(job.task(job_id)):
            yield f"log     {path}"
        for start in job.starts(job.task(job_id)):
            yield f"start   {start}"


def print_logs(job: SubmittedJob, job_id: str, follow: bool) -> None:
    """Print the logs of a job; with `follow`, until it has ended.

    Raises:
        UserError: there is none yet, and `follow` is not given.
    """
    task = job.task(job_id)
    paths = job.logs(task)
    if not paths and not follow:
        word = ", ".join(state.word for state in job_states(job, job_id))
        raise UserError(f"job {job_id} has no log yet ({word}); --follow waits for it")
    shown: dict[Path, int] = {}
    asked = 0.0
    active = follow
    while True:
        for path in job.logs(task):
            _print_new(path, shown, headed=len(job.logs(task)) > 1)
        if not active:
            return
        time.sleep(0.5)
        if time.monotonic() - asked > STATE_SECONDS:
            asked = time.monotonic()
            active = any(state.active for state in job_states(job, job_id))


def _print_new(path: Path, shown: dict[Path, int], *, headed: bool) -> None:
    """Print what a log has grown by."""
    with open(path, "rb") as file:
        file.seek(shown.get(path, 0))
        data = file.read()
    if not data:
        return
    if headed:
        print(f"==> {path.name} <==", flush=True)
    shown[path] = shown.get(path, 0) + len(data)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
