"""``dist-mp doctor``: whether this environment can train, and how well."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dist_mp.doctor.examination import Examination

MARKS = {"fine": "[green]fine[/]", "note": "[yellow]note[/]", "problem": "[bold red]problem[/]"}


def doctor(
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", min=1, help="Ranks to start and look at (default: 2, or those of the job)."),
    ] = None,
    hostfile: Annotated[str | None, typer.Option(help="Hosts and slots, in mpirun's own format.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the facts behind the findings.")] = False,
) -> None:
    """Check MPI, launcher, processor, memory, GPUs, network and TensorFlow, and measure links between ranks.

    Starts ranks of its own; under mpirun or srun it looks at those that are there. Exit status: 0 fine, 1 a problem
    was found, 2 the command was wrong.
    """
    from dist_mp.comm.launcher import rank_and_size
    from dist_mp.errors import UserError

    inside = rank_and_size(os.environ)
    if inside is not None and ranks is not None:
        raise UserError("doctor: --ranks starts ranks; this is already a rank of an MPI job")
    if hostfile is not None and not os.path.isfile(hostfile):  # noqa: PTH113
        raise UserError(f"--hostfile {hostfile}: no such file")
    if inside is None:
        from dist_mp.doctor.examination import examine

        found: Examination | None = examine(ranks or int(os.environ.get("SLURM_NTASKS", "2")), hostfile)
    else:
        found = _as_rank()
    raise typer.Exit(_show(found, as_json) if found is not None else 0)


def _as_rank() -> Examination | None:
    from dist_mp.comm.abort import abort_on_exception
    from dist_mp.comm.world import World
    from dist_mp.doctor.examination import examine_job

    world = World.open()
    abort_on_exception(world)
    with world:
        return examine_job(world)


def _show(found: Examination, as_json: bool) -> int:
    """Print the findings; returns the exit status."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from dist_mp.doctor.findings import worst

    if as_json:
        print(found.to_json())
        return worst(found.findings)
    table = Table(box=None, pad_edge=False)
    for column in ("", "found", ""):
        table.add_column(column, overflow="fold")
    for one in found.findings:
        advice = f"\n[yellow]{escape(one.advice)}[/]" if one.advice else ""
        table.add_row(one.topic, escape(one.text) + advice, MARKS[one.verdict])
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    words = []
    for verdict in ("problem", "note"):
        count = sum(one.verdict == verdict for one in found.findings)
        words.append(f"{count or 'no'} {verdict}{'' if count == 1 else 's'}")
    console.print(", ".join(words))
    return worst(found.findings)
