"""``dist-mp submit``: a job script for a scheduler, from settings and templates, and into the queue with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from dist_mp.cli.arguments import ConfigArgument, OutputFolderOption, OverridesArgument

if TYPE_CHECKING:
    from dist_mp.launch.request import JobRequest, SchedulerName
    from dist_mp.launch.submitted import SubmittedJob


def submit(
    configuration: ConfigArgument,
    overrides: OverridesArgument = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    ntasks_per_node: Annotated[int, typer.Option("--ntasks-per-node", min=1, help="Ranks a node.")] = 1,
    cpus_per_task: Annotated[
        int | None, typer.Option("--cpus-per-task", min=1, help="Cores a rank (default: the setting `threads`).")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=0, help="GPUs a node.")] = 0,
    time: Annotated[str, typer.Option(help="Time limit of one start: minutes, HH:MM:SS, D-HH:MM:SS.")] = "1:00:00",
    partition: Annotated[str, typer.Option(help="Partition (PBS, LSF: queue).")] = "",
    account: Annotated[str, typer.Option(help="Account or project that pays.")] = "",
    qos: Annotated[str, typer.Option(help="Quality of service.")] = "",
    constraint: Annotated[str, typer.Option(help="Features that nodes must have.")] = "",
    job_name: Annotated[str, typer.Option("--job-name", help="Name of the job (default: the setting `name`).")] = "",
    output_folder: OutputFolderOption = Path("runs"),
    launcher: Annotated[str, typer.Option(help="srun or mpirun (default: srun in Slurm, else mpirun).")] = "",
    mpi: Annotated[
        str, typer.Option("--mpi", help="srun's --mpi (default: pmix for Open MPI, pmi2 for MPICH and Intel MPI).")
    ] = "",
    scheduler: Annotated[str, typer.Option(help="slurm, pbs or lsf (default: the one that is here).")] = "auto",
    setup: Annotated[
        list[str] | None, typer.Option(help="Shell before the ranks start: 'module load openmpi'. Repeatable.")
    ] = None,
    directive: Annotated[
        list[str] | None, typer.Option(help="A further option of the scheduler: --directive=--mem=0. Repeatable.")
    ] = None,
    templates: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="DIST_MP_TEMPLATES", help="Your site's templates (docs/cluster.md)."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", "--array", metavar="KEY=V1,V2", help="A job array with a run a value. Repeatable."),
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=0, help="Runs of a sweep at the same time (0: all).")] = 0,
    save_before: Annotated[
        int | None,
        typer.Option("--save-before", min=1, help="Seconds before the time limit at which the ranks save and end."),
    ] = None,
    max_requeues: Annotated[
        int, typer.Option("--max-requeues", min=0, help="How often the job may go back into the queue.")
    ] = 100,
    parsable: Annotated[bool, typer.Option("--parsable", help="Print nothing but the job's id.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script and exit.")] = False,
) -> None:
    """Put a training run into a cluster's queue: check the settings, write the job script, submit it.

    Before the time limit the ranks save, the job goes back into the queue and resumes by itself.
    """
    from dist_mp.launch import submission
    from dist_mp.launch.request import SchedulerName
    from dist_mp.launch.scheduler import find_scheduler
    from dist_mp.launch.script import render

    options = submission.Options(
        configuration=configuration,
        overrides=overrides or [],
        nodes=nodes,
        ntasks_per_node=ntasks_per_node,
        cpus_per_task=cpus_per_task,
        gpus_per_node=gpus_per_node,
        time=time,
        partition=partition,
        account=account,
        qos=qos,
        constraint=constraint,
        job_name=job_name,
        launcher=launcher,
        mpi=mpi,
        setup=setup or [],
        directives=directive or [],
        sweep=sweep or [],
        at_once=at_once,
        save_before=save_before,
        max_requeues=max_requeues,
    )
    made = submission.plan(options)
    if dry_run:
        name: SchedulerName = scheduler if scheduler in get_args(SchedulerName) else find_scheduler(scheduler).name  # type: ignore[assignment]
        folder = output_folder.resolve() / f"{made.name}-DATE-TIME"
        print(render(submission.request(made, name, folder), templates), end="")
        return
    system = find_scheduler(scheduler)
    submitted, job = submission.send(made, system, output_folder, templates)
    if parsable:
        print(submitted.job_id)
    else:
        _say(submitted, job, output_folder)


def _say(submitted: SubmittedJob, job: JobRequest, output: Path) -> None:
    """Print the job's id and how to follow it."""
    from dist_mp.launch.request import slurm_time

    ranks = f"{job.ranks} rank{'' if job.ranks == 1 else 's'} on {job.nodes} node{'' if job.nodes == 1 else 's'}"
    runs = f"{len(job.tasks)} runs of " if job.tasks else ""
    where = "" if output == Path("runs") else f" --output-folder {output}"
    print(f"job {submitted.job_id} submitted: {runs}{ranks}, at most {slurm_time(job.seconds)} a start")
    print(f"folder   {submitted.folder}")
    print(f"status   dist-mp status {submitted.job_id}{where}")
    print(f"log      dist-mp logs -f {submitted.job_id}{where}")
    print(f"watch    dist-mp watch {submitted.folder}{'/task-*' if job.tasks else ''}")
    print(f"cancel   dist-mp cancel {submitted.job_id}{where}")
