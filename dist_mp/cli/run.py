"""``dist-mp run``: a job on so many ranks, started with mpirun."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Annotated

import typer

from dist_mp.cli.arguments import ConfigArgument, OverridesArgument, TimelineOption
from dist_mp.cli.train import require_tensorflow, train_here


def run(
    configuration: ConfigArgument,
    overrides: OverridesArgument = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="Number of ranks (workers).")] = 1,
    hostfile: Annotated[
        str | None, typer.Option(help="Hosts and slots, in mpirun's own format (default: this machine, or the job's).")
    ] = None,
    mpi_arg: Annotated[
        list[str] | None, typer.Option("--mpi-arg", help="A further argument of mpirun; give it once for each word.")
    ] = None,
    timeline: TimelineOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the mpirun command and exit.")] = False,
) -> None:
    """Train on so many ranks: finds mpirun, chooses its flags, and ends all ranks when one fails.

    One rank runs in this process, without mpirun. In a Slurm, PBS or LSF job the ranks go to the job's nodes.
    """
    from dist_mp import settings
    from dist_mp.errors import UserError
    from dist_mp.launch.job import run_job
    from dist_mp.launch.mpirun import find_mpirun, job_command, rank_and_size, this_machine

    inside = rank_and_size(os.environ)
    if inside is not None and inside[1] > 1:
        raise UserError("run: this is already a rank of an MPI job; start its ranks with `dist-mp train` instead")
    words = [*(overrides or []), *(["timeline=true"] if timeline else [])]
    config = settings.load(configuration, words)
    settings.resolve_batch(config, ranks)
    if hostfile is not None and not os.path.isfile(hostfile):  # noqa: PTH113
        raise UserError(f"--hostfile {hostfile}: no such file")
    require_tensorflow()
    if ranks == 1 and hostfile is None and not mpi_arg and not dry_run:
        raise typer.Exit(train_here(config))
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    command = job_command(
        find_mpirun(),
        ranks,
        [sys.executable, "-m", "dist_mp", "train", configuration, *words],
        machine=this_machine(),
        threads=config.threads,
        hostfile=hostfile,
        extra=mpi_arg or [],
        terminal_columns=columns,
    )
    if dry_run:
        print(" ".join([*(f"{k}={shlex.quote(v)}" for k, v in command.environment.items()), shlex.join(command.argv)]))
        raise typer.Exit
    for note in command.notes:
        print(f"dist-mp: {note}", file=sys.stderr)
    raise typer.Exit(run_job(command))
