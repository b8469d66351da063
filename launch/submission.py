"""From the options of ``dist-mp submit`` to a job in the queue."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from dist_mp import settings
from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.launch.mpirun import find_mpirun
from dist_mp.launch.request import (
    DEFAULT_WARNING_SECONDS,
    JobRequest,
    LauncherName,
    SchedulerName,
    check_name,
    parse_time,
    sweep,
)
from dist_mp.launch.scheduler import Scheduler
from dist_mp.launch.script import render
from dist_mp.launch.submitted import SubmittedJob, make_job_folder, remember

CONFIG = "job.yaml"
"""Settings of all runs of a job; the run writes its own `config.yaml`."""


@dataclass(frozen=True)
class Options:
    """The options as they were given; empty ones are chosen here."""

    configuration: str
    overrides: list[str] = field(default_factory=list)
    nodes: int = 1
    ntasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: int = 0
    time: str = "1:00:00"
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    job_name: str = ""
    launcher: str = ""
    mpi: str = ""
    setup: list[str] = field(default_factory=list)
    directives: list[str] = field(default_factory=list)
    sweep: list[str] = field(default_factory=list)
    at_once: int = 0
    save_before: int | None = None
    max_requeues: int = 100


@dataclass(frozen=True)
class Plan:
    """A job before it has a folder: its settings are valid, and its name is."""

    options: Options
    config: Config
    """Settings of all runs."""
    tasks: list[list[str]]
    """What each run of a sweep sets on top."""
    name: str

    @property
    def ranks(self) -> int:
        """Ranks of a run."""
        return self.options.nodes * self.options.ntasks_per_node


def plan(options: Options) -> Plan:
    """Check the settings of every run, on as many ranks as it will have.

    Raises:
        UserError: a setting is wrong; nothing was written.
    """
    tasks = sweep(options.sweep, options.overrides)
    config = settings.load(options.configuration, options.overrides)
    made = Plan(options, config, tasks, options.job_name or config.name)
    for task in tasks or [[]]:
        settings.resolve_batch(settings.load(options.configuration, [*options.overrides, *task]), made.ranks)
    check_name(made.name)
    return made


def request(made: Plan, scheduler: SchedulerName, folder: Path) -> JobRequest:
    """The job of a plan, in its folder.

    Raises:
        UserError: an option is wrong.
    """
    options = made.options
    seconds = parse_time(options.time)
    cores = options.cpus_per_task or made.config.threads
    if cores < made.config.threads:
        raise UserError(f"--cpus-per-task {cores}: the setting threads is {made.config.threads}; change one of them")
    launcher = _launcher(options.launcher, scheduler)
    mpi, environment = _wire_up(options.mpi) if launcher == "srun" else ("", {})
    words = ["train"] if launcher == "srun" else ["run", "-n", str(made.ranks)]
    of = f", {len(made.tasks)} runs" if made.tasks else ""
    job = JobRequest(
        scheduler=scheduler,
        name=made.name,
        title=f"{shlex.join([options.configuration, *options.overrides])} on {made.ranks} rank(s){of}",
        directory=str(Path.cwd()),
        folder=str(folder),
        command=[sys.executable, "-m", "dist_mp", *words, str(folder / CONFIG)],
        nodes=options.nodes,
        ntasks_per_node=options.ntasks_per_node,
        cpus_per_task=cores,
        gpus_per_node=options.gpus_per_node,
        seconds=seconds,
        warning_seconds=options.save_before or min(DEFAULT_WARNING_SECONDS, seconds // 4),
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
        launcher=launcher,
        mpi=mpi,
        setup=options.setup,
        directives=options.directives,
        environment=environment,
        tasks=made.tasks,
        at_once=options.at_once,
        max_requeues=options.max_requeues,
    )
    job.check()
    return job


def _launcher(name: str, scheduler: SchedulerName) -> LauncherName:
    if name not in ("", "srun", "mpirun"):
        raise UserError(f"--launcher {name}: must be srun or mpirun")
    default: LauncherName = "srun" if scheduler == "slurm" else "mpirun"
    return cast(LauncherName, name) if name else default


def _wire_up(mpi: str) -> tuple[str, dict[str, str]]:
    """What srun's --mpi must be for the MPI that is here, and the variables that it wants.

    Open MPI's ranks meet by PMIx and see no other rank otherwise; those of MPICH and Intel MPI meet by PMI-2. Open MPI
    from PyPI lacks PMIx's munge component, which Slurm asks for, and says so on every rank.
    """
    try:
        found = find_mpirun()
    except UserError:
        return mpi, {}
    mpi = mpi or ("pmix" if found.vendor == "Open MPI" else "pmi2")
    own = Path(found.path).parent == Path(sys.executable).parent
    return mpi, {"PMIX_MCA_psec": "native"} if own and mpi.startswith("pmix") else {}


def send(made: Plan, scheduler: Scheduler, output: Path, templates: Path | None) -> tuple[SubmittedJob, JobRequest]:
    """Write the job's folder and put the job into the queue.

    Raises:
        UserError: an option is wrong, the folder cannot be written, or the scheduler refuses the job; nothing is left.
    """
    folder = make_job_folder(output, made.name)
    try:
        job = request(made, scheduler.name, folder)
        script = render(job, templates)
        (folder / CONFIG).write_text(settings.dump(made.config), encoding="utf-8")
        Path(job.script).write_text(script, encoding="utf-8")
        Path(job.script).chmod(0o755)
        job_id = scheduler.submit(job.script)
    except (UserError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"--output-folder {output}: cannot write there ({error.strerror})") from error
        raise
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    submitted = SubmittedJob(job_id, job.scheduler, job.name, str(folder), job.ranks, len(job.tasks), now)
    remember(output, submitted)
    return submitted, job
