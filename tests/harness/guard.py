"""A command under guard: its own session, a hard time limit, captured output, and no survivor."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

TAG = "DIST_MP_TEST_ID"


@dataclass(frozen=True)
class Finished:
    """How a guarded command ended."""

    argv: list[str]
    rc: int
    """Exit status; minus the signal's number if a signal ended it."""
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool
    left: list[str]
    """Processes that were still alive after the command itself had ended by its own account."""


def run_guarded(
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    interrupt: tuple[float, int] | None = None,
    grace: float = 2.0,
) -> Finished:
    """Run a command to its end or for `timeout` seconds, whichever is sooner, then end every process of its tree.

    `env` is the whole environment. `interrupt` = (seconds, signal) sends the command's first process a signal after
    so many seconds. A process belongs to the tree if it descends from the command or carries the run's tag in its
    environment, so that one that moved to another session or lost its parent is found as well.
    """
    tag = uuid.uuid4().hex
    environment = {**(os.environ if env is None else env), TAG: tag}
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        timed_out = False
        left: list[str] = []
        try:
            if interrupt is not None:
                try:
                    process.wait(interrupt[0])
                except subprocess.TimeoutExpired:
                    process.send_signal(interrupt[1])
            try:
                process.wait(max(0.0, start + timeout - time.monotonic()))
                left = [_describe(member) for member in _after_grace(tag, grace)]
            except subprocess.TimeoutExpired:
                timed_out = True
        finally:
            seconds = time.monotonic() - start
            _end(process, tag)
        out.seek(0)
        err.seek(0)
        stdout = out.read().decode(errors="replace")
        stderr = err.read().decode(errors="replace")
    return Finished(list(argv), process.returncode, stdout, stderr, seconds, timed_out, left)


def members(tag: str) -> list[psutil.Process]:
    """Live processes that carry the tag."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _after_grace(tag: str, seconds: float) -> list[psutil.Process]:
    """Processes that are still there `seconds` after the command ended."""
    end = time.monotonic() + seconds
    while (left := members(tag)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _end(process: subprocess.Popen[bytes], tag: str, seconds: float = 10.0) -> None:
    """Kill the tree and make sure that nothing of it is left."""
    end = time.monotonic() + seconds
    while True:
        alive = members(tag)
        if process.poll() is None:
            first = psutil.Process(process.pid)
            alive += [first, *first.children(recursive=True)]
        if not alive:
            break
        if time.monotonic() > end:
            raise AssertionError(f"not to be killed: {', '.join(map(_describe, alive))}")
        for member in alive:
            try:
                member.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        process.poll()
        time.sleep(0.02)
    process.wait()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except psutil.Error:
        return str(process.pid)
