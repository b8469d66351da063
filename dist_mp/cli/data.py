"""``dist-mp data``: what data there is, fetching it, preparing shots, and looking at what was read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dist_mp.cli.config import print_help


def make_app() -> typer.Typer:
    """The commands below ``dist-mp data``."""
    app = typer.Typer(help="Fetch, prepare and look at data sets.", rich_markup_mode=None)
    app.callback(invoke_without_command=True)(print_help)
    app.command("list")(list_entries)
    app.command("fetch")(fetch)
    app.command("prepare")(prepare)
    app.command("inspect")(inspect)
    return app


def list_entries() -> None:
    """List the data sets that can be fetched, with size and licence."""
    from dist_mp.data.catalogue import catalogue

    for entry in catalogue().values():
        print(f"{entry.name:<14} {entry.title}\n{'':<14} {_size(entry.size, bool(entry.files))}; {entry.licence}")


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of dist-mp data list.", show_default=False)],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where its files go.", show_default="data/NAME")
    ] = None,
    mirror: Annotated[
        str,
        typer.Option("--mirror", metavar="URL", help="Fetch NAME/FILE from below this address.", show_default=False),
    ] = "",
    offline: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Take the files from this folder.", show_default=False),
    ] = None,
    shots: Annotated[int, typer.Option("--shots", min=8, help="campaign only: how many shots to make.")] = 320,
    seed: Annotated[int, typer.Option("--seed", min=0, help="campaign only: seed of the generator.")] = 7,
) -> None:
    """Fetch a data set; a download that was cut off is continued, and every file is checked."""
    from dist_mp.data import fetch as fetching
    from dist_mp.data.catalogue import find_entry
    from dist_mp.errors import UserError

    entry = find_entry(name)
    if mirror and offline is not None:
        raise UserError("data fetch: --mirror and --from exclude each other")
    where = folder or Path("data") / entry.name
    print(f"{entry.title}\nsource   {entry.source}\nsize     {_size(entry.size, bool(entry.files))}")
    print(f"licence  {entry.licence}", flush=True)
    if entry.files:
        for path in fetching.fetch(entry, where, mirror, offline, _download_line):
            print(path)
    else:
        _make_campaign(where, shots, seed)
    print(f"use      {entry.use.replace('FOLDER', str(where))}")


def _make_campaign(folder: Path, shots: int, seed: int) -> None:
    from dist_mp.config import CampaignData
    from dist_mp.data.campaign import Campaign
    from dist_mp.data.raw import write_shots

    settings = CampaignData(shots=shots, seed=seed)
    # The current flows during all of a generated shot: the threshold is below its first value.
    machine = write_shots(folder, Campaign(settings), "campaign", "ip", 0.05)
    print(f"{folder}: {shots} shots, {len(machine.scalars)} scalars, {len(machine.profiles)} profiles")


def prepare(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="Raw shots (machine.yaml), processed shots of FRNN, or a corpus of three texts.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder for what was prepared.", show_default=False)],
    minimum_steps: Annotated[
        int, typer.Option("--minimum-steps", min=1, help="Refuse shots with fewer steps (FRNN: 286).")
    ] = 100,
    step: Annotated[
        float, typer.Option("--step-ms", min=0.001, help="FRNN only: the time step of its files (ms).")
    ] = 1.0,
    trust_pickle: Annotated[
        bool,
        typer.Option("--trust-pickle", help="FRNN only: run the pickles in its files as programs, with your rights."),
    ] = False,
    max_words: Annotated[
        int | None, typer.Option("--max-words", min=2, help="Corpus only: vocabulary limit.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Name every shot that was refused.")] = False,
) -> None:
    """Read, check and resample shots once, or encode a corpus once."""
    from dist_mp.data.corpus import prepare_corpus
    from dist_mp.data.detect import KINDS, detect
    from dist_mp.data.frnn import import_frnn
    from dist_mp.data.inspection import refusal_lines
    from dist_mp.data.processed import prepare_shots
    from dist_mp.errors import UserError

    kind, _ = detect(source)
    if kind == "text":
        summary = prepare_corpus(source, out, max_words)
        counts = " / ".join(f"{count:,}" for count in summary.tokens.values())
        print(f"{out}: {counts} words (train / valid / test), vocabulary {summary.vocabulary:,}")
        print(f"use      data.kind=text data.path={out}")
        return
    if kind == "raw":
        done = prepare_shots(source, out, minimum_steps, _count_line)
    elif kind == "frnn":
        done = import_frnn(source, out, step, trust_pickle, minimum_steps, _count_line)
    else:
        raise UserError(f"{source}: is {KINDS[kind]}, which is read as it is; only raw shots and corpora are prepared")
    print(f"{out}: {done.kept} shots kept")
    for line in refusal_lines(done.refused, everything):
        print(line)
    print(f"use      data.kind=shots data.path={out}")


def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A data set of any kind.", show_default=False)],
    shot: Annotated[
        int | None, typer.Option("--shot", help="Prepared shots: the number of a shot to draw.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Where to draw it (.png, .svg or .pdf).")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Name every shot that was refused.")] = False,
) -> None:
    """Show shapes, lengths, classes, and what was refused and why."""
    from dist_mp.data.inspection import inspect_path, plot_shot
    from dist_mp.errors import UserError

    if (shot is None) != (plot is None):
        raise UserError("data inspect: --shot NUMBER and --plot FILE belong together")
    if shot is not None and plot is not None:
        plot_shot(path, shot, plot)
        print(plot)
        return
    for line in inspect_path(path, everything):
        print(line)


def _size(size: int | None, remote: bool) -> str:
    if not remote:
        return "made on this machine"
    return f"{size / 1e6:,.1f} MB" if size is not None else "size not known beforehand"


def _download_line(name: str, done: int, total: int | None) -> None:
    """Progress on a terminal, in one line that is written over."""
    if sys.stderr.isatty():
        of = f" of {total / 1e6:,.1f}" if total is not None else ""
        end = "\n" if done == total else ""
        print(f"\r{name}: {done / 1e6:,.1f}{of} MB", end=end, file=sys.stderr, flush=True)


def _count_line(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rshot {done} of {total}", end=end, file=sys.stderr, flush=True)
