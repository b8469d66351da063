"""What the three schedulers are asked: to take a job, to say how it stands, to end it."""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dist_mp.errors import UserError
from dist_mp.launch.request import SchedulerName

ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class JobState:
    """How a job, or one run of an array, stands."""

    job_id: str
    word: str
    """The scheduler's own word in lower case: pending, running, completed, ..."""
    nodes: str = ""
    elapsed: str = ""
    limit: str = ""
    reason: str = ""
    """Why it waits, or its exit status where it has ended."""

    @property
    def active(self) -> bool:
        """Whether it is in the queue or runs."""
        return self.word.split()[0] in ACTIVE


ACTIVE = {
    *("pending", "running", "suspended", "completing", "configuring", "requeued", "requeue_hold", "resizing"),
    *("requeue_fed", "signaling", "special_exit", "stage_out", "stopped", "held", "exiting", "waiting"),
}
"""States of a job that has not ended."""


class Scheduler(ABC):
    """A scheduler, through its own commands."""

    name: ClassVar[SchedulerName]
    submits_with: ClassVar[str]
    """The command that submits; whether it is there tells whether this scheduler is."""

    @abstractmethod
    def submit(self, script: str) -> str:
        """Put a job script into the queue; returns the job's id."""

    @abstractmethod
    def states(self, job_id: str) -> list[JobState]:
        """How the job stands, a line for each run of an array; empty if the scheduler has forgotten it."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """End a job, wherever it stands."""

    def ask(self, argv: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of the scheduler's commands.

        Raises:
            UserError: it is not there, or gives no answer in a minute.
        """
        try:
            return subprocess.run(
                list(argv), input=text or "", capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
            )
        except FileNotFoundError as error:
            raise UserError(
                f"no {argv[0]} on PATH: this machine has no {self.name}, or its module is missing"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{argv[0]} gave no answer in {ANSWER_SECONDS:.0f} s; the scheduler may be down") from error

    def must(self, argv: Sequence[str], text: str | None = None) -> str:
        """The output of a command; a UserError with its words where it fails."""
        done = self.ask(argv, text)
        if done.returncode:
            raise UserError(f"{argv[0]}: {_words(done.stderr or done.stdout) or f'status {done.returncode}'}")
        return done.stdout.strip()


def _words(text: str) -> str:
    """An error text as one line, without the command's own name in front of each line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(line.split(": error: ", 1)[-1] for line in lines)


def find_scheduler(name: str = "auto") -> Scheduler:
    """The scheduler of that name, or the one whose commands are on PATH.

    Raises:
        UserError: there is none, or no such name.
    """
    from dist_mp.launch.batch_systems import Lsf, Pbs
    from dist_mp.launch.slurm import Slurm

    kinds: dict[str, type[Scheduler]] = {kind.name: kind for kind in (Slurm, Pbs, Lsf)}
    if name in kinds:
        return kinds[name]()
    if name != "auto":
        raise UserError(f"--scheduler {name}: must be auto, {', '.join(kinds)}")
    for kind in kinds.values():
        if shutil.which(kind.submits_with) is not None:
            return kind()
    commands = ", ".join(kind.submits_with for kind in kinds.values())
    raise UserError(f"no scheduler here ({commands} are not on PATH); --dry-run --scheduler slurm prints the script")
