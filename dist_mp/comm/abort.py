"""A rank that fails ends the job: with its traceback, at once, and with an exit status that is not 0."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from types import TracebackType

from dist_mp.comm.world import World
from dist_mp.errors import EXIT_USER_ERROR, UserError


def abort_on_exception(world: World) -> None:
    """From now on, an exception that nobody catches ends all ranks.

    The traceback is printed with the rank in front of each line, then MPI_Abort ends the job with status 1. Holds in
    every thread, and also while threads are alive that are no daemons: Python would wait for them before it exits,
    the hook runs earlier. ``sys.exit`` with a status other than 0 inside ``with world`` ends the job with that status.
    """

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _report(world, kind, error, trace)

    def uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
        # A thread that is told to end raises SystemExit in itself, which is no failure.
        if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
            _report(world, args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread
    world.aborts_on_exception = True


def _report(world: World, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    # One write, so that ranks that fail together do not mix their lines.
    sys.stderr.write("".join(f"[rank {world.rank}] {line}\n" for line in text.splitlines()))
    world.abort(1)


def fail(world: World, error: UserError, patience: float = 1.0) -> None:
    """Print a user's mistake as one line and end all ranks with status 2. Does not return.

    All ranks usually find the same mistake; only rank 0 prints it. Another rank gives rank 0 `patience` seconds to
    end the job, then speaks for itself.
    """
    if world.rank == 0:
        line = f"error: {error}"
    else:
        time.sleep(patience)
        line = f"error (rank {world.rank}): {error}"
    sys.stderr.write(line.replace("\n", " ") + "\n")
    world.abort(EXIT_USER_ERROR)
