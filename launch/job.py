"""Running a job: signals are passed on, mpirun's own messages become one line, and no process is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import IO, BinaryIO

from dist_mp.launch.banner import BannerFilter
from dist_mp.launch.mpirun import JobCommand
from dist_mp.launch.processes import TAG, end_processes
from dist_mp.launch.reaper import DONE

GRACE_SECONDS = 300.0
"""How long a job that was asked to end may take to save its state before it is killed."""
STOPPED = 75
"""Exit status of a job that saved its state because it was asked to end; its ranks have said so."""
_HOLD_SECONDS = 0.5
"""How long the start of what may be a message of mpirun is held back."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    status: int
    """Exit status of dist-mp."""
    asked: bool
    """Whether this process was asked to end."""


def run_job(command: JobCommand) -> int:
    """Run a job to its end; returns the exit status of dist-mp. See :func:`watch_job`."""
    return watch_job(command).status


def watch_job(command: JobCommand) -> JobEnd:
    """Run a job to its end.

    The status is mpirun's, or 128 + the signal that ended the job or that this process was asked to end with, or 75
    where it was asked to end and saved its state. All output is passed on except mpirun's notes on how the job ended;
    those become one line on standard error, and none at all where the status is 2 or 75 and a rank has said why.
    """
    tag = uuid.uuid4().hex
    environment = {**os.environ, **command.environment, TAG: tag}
    process = subprocess.Popen(
        command.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=_ending_with_parent(),
    )
    reaper = subprocess.Popen(
        [sys.executable, "-m", "dist_mp.launch.reaper", tag], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None and process.stderr is not None
    pumps = [_Pump(process.stdout, sys.stdout.buffer), _Pump(process.stderr, sys.stderr.buffer)]
    try:
        with _passing_signals_on(process) as asked:
            for pump in pumps:
                pump.start()
            _wait(process, tag, asked)
    finally:
        end_processes(tag)
        process.wait()
        reaper.communicate(DONE)
        for pump in pumps:
            pump.join(5.0)
        if not any(pump.is_alive() for pump in pumps):
            process.stdout.close()
            process.stderr.close()
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    ending = next((pump.filter.ending for pump in pumps if pump.filter.ending is not None), None)
    if status and ending is not None and ending.status:
        status = ending.status  # Hydra may return the status of a rank that it killed itself
    if status == 0 and ending is not None and ending.lost:
        status = 1  # Open MPI returns 0 where a node went down
    if status == STOPPED:
        return JobEnd(status, True)
    if asked and status:
        status = 128 + asked[0]
        print(f"dist-mp: ended by {signal.Signals(asked[0]).name}", file=sys.stderr)
    elif status not in (0, 2) or (status == 2 and not pumps[1].shown):
        print(f"dist-mp: {ending or f'mpirun ended with status {status}'}", file=sys.stderr)
        if ending is not None and ending.signal is not None:
            status = 128 + int(ending.signal.split()[0])
    return JobEnd(status, bool(asked))


class _Pump(threading.Thread):
    """Copies a stream through a filter."""

    def __init__(self, source: IO[bytes], target: BinaryIO) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._target = target
        self.filter = BannerFilter()
        self.shown = False
        """Whether anything was passed on."""
        self._lock = threading.Lock()

    def run(self) -> None:
        timer: threading.Timer | None = None
        while data := os.read(self._source.fileno(), 1 << 16):
            if timer is not None:
                timer.cancel()
            with self._lock:
                self._show(self.filter.feed(data))
                if self.filter.holds:
                    timer = threading.Timer(_HOLD_SECONDS, self._flush)
                    timer.daemon = True
                    timer.start()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            self._show(self.filter.flush())

    def _show(self, data: bytes) -> None:
        if data:
            self.shown = True
            with contextlib.suppress(BrokenPipeError):
                self._target.write(data)
                self._target.flush()


def _wait(process: subprocess.Popen[bytes], tag: str, asked: list[int]) -> None:
    """Wait for mpirun; kill the job if it was interrupted twice, or was asked to end and takes too long."""
    deadline = None
    while True:
        try:
            process.wait(0.2)
            return
        except subprocess.TimeoutExpired:
            if asked and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
            if asked.count(signal.SIGINT) > 1 or (deadline is not None and time.monotonic() > deadline):
                end_processes(tag)


@contextlib.contextmanager
def _passing_signals_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass signals on to mpirun while inside; yields the list of those that asked the job to end.

    They go on as SIGUSR1, which mpirun hands to every rank: a training run saves its state and ends, any other program
    ends at once (with MPICH, which ignores SIGUSR1 for programs that do not, at the second Ctrl-C). SIGTERM and SIGINT
    would make mpirun kill the ranks.
    """
    asked: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        process.send_signal(signal.SIGUSR1)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        process.send_signal(number)

    handlers = {signal.SIGINT: end, signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGUSR1: end}
    handlers |= {signal.SIGUSR2: pass_on}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending_with_parent() -> Callable[[], object] | None:
    """What the child does before it becomes mpirun: ask the kernel (Linux) to end it when this process dies."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
