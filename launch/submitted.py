"""A small record of the jobs that were submitted: which id belongs to which folder."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from dist_mp.errors import UserError
from dist_mp.launch.request import SchedulerName

RECORD = "jobs.jsonl"


@dataclass(frozen=True)
class SubmittedJob:
    """A line of the record."""

    job_id: str
    scheduler: SchedulerName
    name: str
    folder: str
    ranks: int
    tasks: int
    """Runs of a sweep; 0 for a single run."""
    submitted: str
    """Time, UTC."""

    def task(self, job_id: str) -> int | None:
        """The number of the run that an id such as ``12_3`` or ``12[3]`` names; None for the whole job."""
        match = re.search(r"(?:_|\[)(\d+)\]?$", job_id)
        return int(match[1]) if match and self.tasks else None

    def task_folder(self, task: int | None) -> Path:
        """Where a run writes."""
        return Path(self.folder) if task is None else Path(self.folder) / f"task-{task}"

    def logs(self, task: int | None = None) -> list[Path]:
        """The log files that are there, all runs of a sweep or one of them."""
        if self.scheduler == "slurm":
            found = list(Path(self.folder).glob(f"job-*_{task}.log" if task is not None else "job-*.log"))
        else:
            found = [path for path in self._folders(task) if path.exists()]
        return sorted(found, key=lambda path: (len(str(path)), str(path)))

    def _folders(self, task: int | None) -> list[Path]:
        tasks = [task] if task is not None or not self.tasks else range(1, self.tasks + 1)
        return [self.task_folder(number) / "job.log" for number in tasks]

    def own_state(self, task: int | None = None) -> str:
        """What the job script wrote last: ``running``, ``requeued`` or ``ended STATUS``; empty before that."""
        try:
            return (self.task_folder(task) / "job-state").read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def starts(self, task: int | None = None) -> list[str]:
        """When, under which id and where the job was started: a line each."""
        try:
            return (self.task_folder(task) / "job-starts").read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    def current_id(self) -> str:
        """The id that it has now: PBS gives a new one to a job that comes back."""
        starts = self.starts()
        return starts[-1].split()[1] if self.scheduler == "pbs" and not self.tasks and starts else self.job_id


def make_job_folder(output: Path, name: str) -> Path:
    """Make a new folder for a job in the output folder; returns its absolute path.

    Raises:
        UserError: it cannot be made.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        folder = output.resolve() / (f"{name}-{stamp}" if number == 0 else f"{name}-{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"--output-folder {output}: cannot write there ({error.strerror})") from error
        return folder
    raise UserError(f"--output-folder {output}: a thousand folders of this name exist")


def remember(output: Path, job: SubmittedJob) -> None:
    """Add a job to the record, in one write."""
    line = json.dumps(asdict(job)) + "\n"
    descriptor = os.open(output / RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def recorded(output: Path) -> list[SubmittedJob]:
    """The jobs of the record, oldest first.

    Raises:
        UserError: a line of it is damaged.
    """
    path = output / RECORD
    if not path.exists():
        return []
    jobs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            jobs.append(SubmittedJob(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}:{number}: is no record of a job; take the line out") from error
    return jobs


def find_job(output: Path, job_id: str) -> SubmittedJob:
    """The recorded job of that id, or of the array that ``12_3`` belongs to; the newest where ids repeat.

    Raises:
        UserError: there is none.
    """
    whole = re.sub(r"(_|\[)\d+\]?$", "", job_id)
    for job in reversed(recorded(output)):
        if job.job_id in (job_id, whole) or job.current_id() == job_id or job.job_id.split("[")[0] == whole:
            return job
    raise UserError(
        f"{job_id}: no job of this id was submitted with dist-mp to {output}; name the folder with --output-folder"
    )
