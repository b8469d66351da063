"""What mpirun adds to a job's output when a rank ends badly: taken out of the stream, and said in one line."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RULE = b"-" * 74
"""Open MPI puts its messages between two such lines."""
_HYDRA_FIRST = b"=" * 83
_HYDRA_LAST = b"Please see the FAQ page for debugging suggestions"
_MAX_HELD_LINES = 40

_OPEN_MPI_END = (
    r"exited with non-zero status",
    r"MPI_ABORT was invoked",
    r"calling\s+\"abort\"",
    r"exited on\s+signal",
    r"noticed that process rank",
    r"without calling \"(finalize|MPI_Finalize)\"",
)
_HYDRA_LINES = re.compile(
    rb"Abort\((?P<code>\d+)\) on node \d+ \(rank (?P<rank>\d+) in comm \d+\): application called MPI_Abort"
    rb"|\[mpiexec@[^\]]*\] (Sending Ctrl-C|Press Ctrl-C)"
)
_LOST = r"lost communication with a remote daemon.*?Remote daemon:[^\n]*? on node (\S+)"
_ASKED = (
    (r"unrecognized option.*?Option:\s+(\S+)", "mpirun does not know the option {0}"),
    (r"not enough slots available", "mpirun: not enough slots in the hostfile for so many ranks"),
)


@dataclass(frozen=True)
class Ending:
    """What mpirun said about the first rank that ended badly."""

    who: str
    status: int | None = None
    signal: str | None = None
    """Number and name, as mpirun gives them."""
    lost: bool = False
    """Whether `who` is a node that went down: Open MPI then ends with status 0."""

    def __str__(self) -> str:
        if self.lost:
            return f"mpirun lost {self.who}: it went down, or its network did"
        if self.signal is not None:
            why = "; the system may have run out of memory" if self.signal.startswith("9 ") else ""
            if why and self.who.startswith("process "):  # Hydra reports any of the ranks, also those that it killed
                why += ", or another rank failed first"
            return f"{self.who} was ended by signal {self.signal}{why}"
        return f"{self.who} ended the job with status {self.status}"


class BannerFilter:
    """Passes a stream on, except for mpirun's messages about how a job ended.

    Text is passed on as soon as it cannot be the start of such a message, so that a progress bar stays live.
    """

    def __init__(self) -> None:
        self._partial = b""
        self._held: list[bytes] | None = None
        self._closing = b""
        self.ending: Ending | None = None

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._partial) or self._held is not None

    def feed(self, data: bytes) -> bytes:
        """Take in what came; return what may be shown."""
        shown = []
        # Open MPI adds a zero byte to a stream when a job is aborted, before or after what the ranks wrote.
        *lines, self._partial = (self._partial + data.replace(b"\0", b"")).split(b"\n")
        for line in lines:
            shown.append(self._line(line + b"\n"))
        after_end = self.ending is not None and not self._partial.strip()  # Open MPI sends a lone space
        if self._partial and self._held is None and not after_end and not self._may_open(self._partial):
            shown.append(self._partial)
            self._partial = b""
        return b"".join(shown)

    def flush(self) -> bytes:
        """Return what was held back: it turned out to be no message of mpirun, or the stream has ended."""
        held = b"".join(self._held or []) + self._partial
        self._held, self._partial = None, b""
        return b"" if self.ending is not None and not held.strip() else held

    def _line(self, line: bytes) -> bytes:
        text = line.rstrip(b"\r\n")
        if self._held is None:
            if text in (_RULE, _HYDRA_FIRST):
                self._held = [line]
                self._closing = _RULE if text == _RULE else _HYDRA_LAST
                return b""
            match = _HYDRA_LINES.match(text)
            if match is None:
                return line
            if match["rank"]:
                self._note(Ending(f"rank {int(match['rank'])}", status=int(match["code"])))
            return b""
        self._held.append(line)
        if text == self._closing:
            block, self._held = b"".join(self._held), None
            return self._block(block)
        if len(self._held) > _MAX_HELD_LINES:
            held, self._held = b"".join(self._held), None
            return held
        return b""

    def _block(self, block: bytes) -> bytes:
        """What to show of a whole message."""
        text = block.decode(errors="replace")
        if self._closing == _HYDRA_LAST:
            if "BAD TERMINATION" not in text:
                return block
            signal = re.search(r"EXIT STRING: (.*?) \(signal (\d+)\)", text)
            where = re.search(r"PID (\d+) RUNNING AT (\S+)", text)
            who = f"process {where[1]} on {where[2]}" if where else "a rank"
            if signal:
                self._note(Ending(who, signal=f"{signal[2]} ({signal[1]})"))
            return b""
        for pattern, line in _ASKED:
            asked = re.search(pattern, text, re.DOTALL)
            if asked:
                return line.format(*asked.groups()).encode() + b"\n"
        lost = re.search(_LOST, text, re.DOTALL)
        if lost:
            self._note(Ending(f"node {lost[1]}", lost=True))
            return b""
        if not any(re.search(pattern, text) for pattern in _OPEN_MPI_END):
            return block
        rank = re.search(r"(?:process rank|on rank|@\d+,)\s*(\d+)", text)
        who = f"rank {rank[1]}" if rank else "a rank"
        signal = re.search(r"signal (\d+) \(([^)]*)\)", text)
        status = re.search(r"(?:Exit code|Errorcode):\s*(\d+)", text)
        if signal:
            self._note(Ending(who, signal=f"{signal[1]} ({signal[2]})"))
        elif status:
            self._note(Ending(who, status=int(status[1])))
        return b""

    def _note(self, ending: Ending) -> None:
        if self.ending is None:
            self.ending = ending

    @staticmethod
    def _may_open(partial: bytes) -> bool:
        """Whether an unfinished line may become the start of a message."""
        starts = (_RULE, _HYDRA_FIRST, b"Abort(", b"[mpiexec@")
        return any(start.startswith(partial) or partial.startswith(start) for start in starts)
