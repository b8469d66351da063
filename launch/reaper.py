"""Ends what is left of a job on this machine when its launcher was killed and could not do it.

``python -m dist_mp.launch.reaper TAG`` reads standard input, the launcher's end of a pipe. The word ``done`` means
that the launcher has ended the job; an end without it, that the launcher is gone. mpirun then has a few seconds to end
its ranks itself: Open MPI sometimes dies first and leaves them.
"""

from __future__ import annotations

import signal
import sys
import time

from dist_mp.launch.processes import end_processes, processes_of

DONE = b"done"
GRACE_SECONDS = 3.0


def main(tag: str) -> None:
    """Wait for the launcher, then end the job if it did not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return
    end = time.monotonic() + GRACE_SECONDS
    while processes_of(tag) and time.monotonic() < end:
        time.sleep(0.1)
    end_processes(tag)


if __name__ == "__main__":
    main(sys.argv[1])
