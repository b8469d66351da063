"""What a job asks a scheduler for: resources, time, and the runs of a sweep."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dist_mp.errors import EXIT_STOPPED, UserError

SchedulerName = Literal["slurm", "pbs", "lsf"]
LauncherName = Literal["srun", "mpirun"]

SECOND, MINUTE, HOUR, DAY = 1, 60, 3600, 86400
DEFAULT_WARNING_SECONDS = 120
MAX_TASKS = 1000
_FORMS = (
    (r"(\d+)", (MINUTE,)),
    (r"(\d+):(\d+)", (MINUTE, SECOND)),
    (r"(\d+):(\d+):(\d+)", (HOUR, MINUTE, SECOND)),
    (r"(\d+)-(\d+)", (DAY, HOUR)),
    (r"(\d+)-(\d+):(\d+)", (DAY, HOUR, MINUTE)),
    (r"(\d+)-(\d+):(\d+):(\d+)", (DAY, HOUR, MINUTE, SECOND)),
)
_WORD = re.compile(r"[^\s\"'\\`$#;]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class JobRequest:
    """A job as the templates see it, under the name `job`."""

    scheduler: SchedulerName
    name: str
    title: str
    """One line that says what the job trains."""
    directory: str
    """Where the job runs: the folder that it was submitted from, so that relative paths mean the same."""
    folder: str
    """The job's own folder: script, settings, log, and the run's folder."""
    command: list[str]
    """What starts one rank (srun) or all ranks (mpirun), without the settings that differ between tasks."""
    nodes: int = 1
    ntasks_per_node: int = 1
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    seconds: int = HOUR
    """Time limit."""
    warning_seconds: int = DEFAULT_WARNING_SECONDS
    """How long before the time limit the ranks are asked to save."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    launcher: LauncherName = "srun"
    mpi: str = ""
    """srun's --mpi; empty for the cluster's default."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell before the ranks start, such as `module load openmpi`."""
    directives: list[str] = field(default_factory=list)
    """Further options of the scheduler, one a line."""
    environment: dict[str, str] = field(default_factory=dict)
    tasks: list[list[str]] = field(default_factory=list)
    """Settings of each run of a sweep; empty for a single run."""
    at_once: int = 0
    """Runs of a sweep at the same time; 0 for as many as there is room for."""
    max_requeues: int = 100
    saved_status: int = EXIT_STOPPED
    """Exit status of ranks that saved their state because a signal asked them to."""

    @property
    def ranks(self) -> int:
        """Ranks of a run."""
        return self.nodes * self.ntasks_per_node

    @property
    def kills_on_bad_exit(self) -> bool:
        """Whether srun must end a run when one of its ranks dies: PMIx does so itself, PMI-2 leaves the others waiting.

        Where srun does it, it also ends ranks that are still about to exit after they have saved.
        """
        return self.launcher == "srun" and not self.mpi.startswith("pmix")

    @property
    def saved_pattern(self) -> str:
        """Statuses after which a job that was asked to save may go on, as a regular expression.

        138: the signal came before a rank was ready for it, so there was nothing new to save. 143: srun ended a rank
        because another one had ended first.
        """
        return f"^({self.saved_status}|138{'|143' if self.kills_on_bad_exit else ''})$"

    @property
    def script(self) -> str:
        """Path of the job script."""
        return f"{self.folder}/job.sh"

    def check(self) -> None:
        """Raise a UserError for what no scheduler would take, or would take for something else."""
        check_name(self.name)
        for option in ("partition", "account", "qos", "constraint", "mpi"):
            text = getattr(self, option)
            if text and not _WORD.fullmatch(text):
                raise UserError(f"--{option} {text!r}: holds a character that job scripts cannot carry")
        for line in [*self.directives, *self.setup]:
            if not line.isprintable():
                raise UserError(f"{line!r}: must be one line of printable text; give the option once for each line")
        if not self.folder.isprintable() or set(self.folder) & set("%\"\\'`$"):
            raise UserError(
                f"--output-folder {self.folder}: a path with quotes, %, $ or \\ cannot stand in job scripts"
            )
        if self.scheduler != "slurm" and any(char.isspace() for char in self.folder):
            raise UserError(
                f"--output-folder {self.folder}: a path with spaces cannot stand in {self.scheduler} scripts"
            )
        if self.scheduler != "slurm" and self.launcher == "srun":
            raise UserError(f"--launcher srun belongs to Slurm; with --scheduler {self.scheduler} it is mpirun")
        if not 0 < self.warning_seconds < self.seconds:
            raise UserError(
                f"--save-before {self.warning_seconds}: must lie between 0 and the time limit of {self.seconds} s"
            )
        if len(self.tasks) > MAX_TASKS:
            raise UserError(f"--sweep: {len(self.tasks)} runs are more than {MAX_TASKS}; split the sweep")


def check_name(name: str) -> None:
    """Raise a UserError for a name that schedulers or file systems do not take."""
    if not _NAME.fullmatch(name):
        raise UserError(f"--job-name {name!r}: write letters, digits, points, dashes and underscores")


def parse_time(text: str) -> int:
    """Seconds of a time limit in Slurm's forms: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    for pattern, units in _FORMS:
        match = re.fullmatch(pattern, text.strip())
        if match:
            seconds = sum(int(number) * unit for number, unit in zip(match.groups(), units, strict=True))
            if seconds:
                return seconds
    raise UserError(f"--time {text}: must be minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, and not 0")


def clock(seconds: int) -> str:
    """``HH:MM:SS``, with as many hours as it takes."""
    return f"{seconds // HOUR:02d}:{seconds % HOUR // MINUTE:02d}:{seconds % MINUTE:02d}"


def slurm_time(seconds: int) -> str:
    """``D-HH:MM:SS``, without the days where there are none."""
    days, rest = divmod(seconds, DAY)
    return f"{days}-{clock(rest)}" if days else clock(rest)


def sweep(texts: Sequence[str], given: Sequence[str] = ()) -> list[list[str]]:
    """The runs of a sweep: every combination of ``key=v1,v2`` texts, the last one changing fastest.

    A comma inside brackets, braces or quotes belongs to its value.

    Args:
        texts: one for each setting.
        given: settings of all runs; a key may stand in one place only.
    """
    keys = [text.partition("=")[0].strip() for text in given]
    choices = []
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        parts = _split(values)
        if not equals or not key or not all(parts):
            raise UserError(f"--sweep {text}: write key=value,value, for example schedule.base=0.01,0.02")
        if key in keys:
            raise UserError(f"--sweep {text}: {key} is set twice")
        keys.append(key)
        choices.append([f"{key}={part}" for part in parts])
    return [list(run) for run in itertools.product(*choices)] if choices else []


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for char in text:
        if char == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += char
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        else:
            depth += (char in "[{") - (char in "]}")
    return [part.strip() for part in parts]
