"""``dist-mp run``: a job on so many ranks, started with mpirun."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from dist_mp.cli.arguments import (
    IntoOption,
    OptionalConfigArgument,
    OverridesArgument,
    ResumeOption,
    TimelineOption,
    configuration_of,
)
from dist_mp.cli.train import require_tensorflow, train_here
from dist_mp.config import Config
from dist_mp.launch.mpirun import JobCommand


def run(
    configuration: OptionalConfigArgument = None,
    overrides: OverridesArgument = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="Number of ranks (workers).")] = 1,
    hostfile: Annotated[
        str | None, typer.Option(help="Hosts and slots, in mpirun's own format (default: this machine, or the job's).")
    ] = None,
    mpi_arg: Annotated[
        list[str] | None, typer.Option("--mpi-arg", help="A further argument of mpirun; give it once for each word.")
    ] = None,
    timeline: TimelineOption = False,
    resume: ResumeOption = None,
    into: IntoOption = None,
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="K",
            help="After a failure start again from the newest checkpoint, K times at most, without dead hosts.",
        ),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the mpirun command and exit.")] = False,
) -> None:
    """Train on so many ranks: finds mpirun, chooses its flags, and ends all ranks when one fails.

    One rank runs in this process, without mpirun. In a Slurm, PBS or LSF job the ranks go to the job's nodes.
    """
    from dist_mp import settings
    from dist_mp.errors import UserError
    from dist_mp.launch.mpirun import find_mpirun, job_command, rank_and_size, this_machine
    from dist_mp.launch.restart import answers, job_hosts, run_with_restarts

    inside = rank_and_size(os.environ)
    if inside is not None and inside[1] > 1:
        raise UserError("run: this is already a rank of an MPI job; start its ranks with `dist-mp train` instead")
    name, words = configuration_of(configuration, overrides, timeline, resume, into)
    config = settings.load(name, words)
    settings.resolve_batch(config, ranks)
    if hostfile is not None and not os.path.isfile(hostfile):  # noqa: PTH113
        raise UserError(f"--hostfile {hostfile}: no such file")
    require_tensorflow()
    if restarts and into is None:
        into, resume = resume or new_folder(config), None  # what is started again has to know the folder
    if ranks == 1 and hostfile is None and not mpi_arg and not dry_run and not restarts:
        raise typer.Exit(train_here(config, resume, into))
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    mpirun, machine = find_mpirun(), this_machine()
    where = [word for option, path in (("--resume", resume), ("--into", into)) if path for word in (option, str(path))]

    def command(count: int, hosts: str | None) -> JobCommand:
        return job_command(
            mpirun,
            count,
            [sys.executable, "-m", "dist_mp", "train", name, *words, *where],
            machine=machine,
            threads=config.threads,
            hostfile=hosts or hostfile,
            extra=mpi_arg or [],
            terminal_columns=columns,
        )

    if dry_run:
        made = command(ranks, None)
        print(" ".join([*(f"{k}={shlex.quote(v)}" for k, v in made.environment.items()), shlex.join(made.argv)]))
        raise typer.Exit
    hosts = job_hosts(hostfile, os.environ) if restarts else []
    status = run_with_restarts(
        restarts, ranks, hosts, command, lambda host: answers(mpirun, host, command(1, None).environment)
    )
    raise typer.Exit(status)


def new_folder(config: Config) -> Path:
    """A run folder that is not there yet, for a run that may be started several times."""
    return Path(config.run_folder) / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
