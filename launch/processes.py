"""The processes of a job on this machine, found by a variable in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

TAG = "DIST_MP_JOB"
"""A variable that all processes of a job inherit, by which the last of them are found."""


def processes_of(tag: str) -> list[int]:
    """Live processes on this machine whose environment carries the tag."""
    wanted = f"{TAG}={tag}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it ended meanwhile, or is not ours
    return found


def end_processes(tag: str, patience: float = 10.0) -> None:
    """Kill what is left of a job on this machine."""
    end = time.monotonic() + patience
    while (left := processes_of(tag)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
