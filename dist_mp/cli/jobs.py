"""``dist-mp status``, ``logs`` and ``cancel``: jobs that were submitted with ``dist-mp submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dist_mp.cli.arguments import OutputFolderOption

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of a job, or of one run of a sweep: 12_3.", show_default=False)
]


def status(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Id of a job (default: all).", show_default=False)
    ] = None,
    output_folder: OutputFolderOption = Path("runs"),
) -> None:
    """Show how jobs stand: in the queue, running, ended, how often started, and where they write."""
    from dist_mp.launch import following
    from dist_mp.launch.submitted import find_job, recorded

    jobs = recorded(output_folder) if job is None else [find_job(output_folder, job)]
    if not jobs:
        print(f"no job was submitted to {output_folder}")
    for line in following.status_lines(jobs, job):
        print(line)


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    output_folder: OutputFolderOption = Path("runs"),
) -> None:
    """Print the log of a job: of all its starts, one after the other."""
    from dist_mp.launch import following
    from dist_mp.launch.submitted import find_job

    following.print_logs(find_job(output_folder, job), job, follow)


def cancel(job: JobArgument, output_folder: OutputFolderOption = Path("runs")) -> None:
    """End a job. Running ranks are asked to save their state first."""
    from dist_mp.launch.scheduler import find_scheduler
    from dist_mp.launch.submitted import find_job

    found = find_job(output_folder, job)
    job_id = found.current_id() if job == found.job_id else job
    find_scheduler(found.scheduler).cancel(job_id)
    print(f"job {job_id} cancelled; what it wrote is in {found.folder}")
