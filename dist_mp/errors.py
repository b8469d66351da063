"""What a user did wrong, said in one line."""

from __future__ import annotations


class UserError(Exception):
    """A setting, file or environment that cannot work; the message is one line: what, where, what would be right.

    The command line prints it without a traceback, from rank 0 only, and exits with status 2. A bug of ours is any
    other exception.
    """


EXIT_USER_ERROR = 2

EXIT_STOPPED = 75
"""A signal asked a run to stop, and its state was saved: it can be resumed (EX_TEMPFAIL of sysexits.h)."""
