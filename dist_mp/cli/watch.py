"""``dist-mp watch`` and ``dist-mp report``: runs as they go, and what they came to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders (default: the newest in runs/).", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot as plain text and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Time between two looks (s).")] = 1.0,
) -> None:
    """Show runs as they go: loss, learning rate, scale, speed, where the time of each rank goes, and stragglers.

    Ends when all of them have ended or died. Where standard output is no terminal, one snapshot is printed.
    """
    from rich.console import Console

    from dist_mp.experiments.run_reader import chosen_runs
    from dist_mp.experiments.watch import watch as show

    show(chosen_runs(runs or []), Console(), once=once, interval_seconds=interval)


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders (default: the newest in runs/).", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where the page goes.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one page that shows what runs came to: curves, time, ranks, bytes, settings, environment.

    The page is a single HTML file that needs no network. Runs that still go are shown as far as they are.
    """
    from dist_mp.experiments.report.page import write_report
    from dist_mp.experiments.run_reader import chosen_runs

    size = write_report(chosen_runs(runs or []), out)
    print(f"{out} ({size / 1e6:.1f} MB)")
