"""``dist-mp predict``: what a trained model says of data."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dist_mp.cli.export import Which
from dist_mp.cli.train import require_tensorflow
from dist_mp.launch.mpirun import rank_environment


class Part(StrEnum):
    """Parts of a data set."""

    train = "train"
    valid = "valid"
    test = "test"


class Scale(StrEnum):
    """Whose scale shots get."""

    training = "training"
    own = "own"


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a checkpoint.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA]",
            help="Data of the kind that the run was trained on (default: the run's own).",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help=".csv or .parquet (default: CSV on standard output)."),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option("--steps", metavar="FILE", help="Also a row a time step of each shot, or a word of a text."),
    ] = None,
    part: Annotated[
        Part | None,
        typer.Option(help="Which part of the data (default: test, or valid where there is none).", show_default=False),
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="Shots: scaled as in training, or by DATA's own shots (another machine).")
    ] = Scale.training,
    checkpoint: Annotated[Which, typer.Option(help="The newest one, or the best by train.metric.")] = Which.newest,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="Number of ranks.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Predict: a row a shot, a sample or a line of text.

    With -n, or under mpirun or srun, the ranks share the work; the result is the same.
    """
    from dist_mp.errors import UserError
    from dist_mp.launch.mpirun import rank_and_size
    from dist_mp.train.checkpoint_files import best_checkpoint, newest_checkpoint
    from dist_mp.train.table import check_table_path

    require_tensorflow()
    inside = rank_and_size(os.environ)
    if inside is None or inside[0] == 0:
        for path in filter(None, (output, steps)):
            check_table_path(path, force)
    if output is not None and output == steps:
        raise UserError(f"{output}: is named twice; --output and --steps are two files")
    if ranks > 1:
        if inside is not None and inside[1] > 1:
            raise UserError("predict: this is already a rank of an MPI job; leave -n out")
        raise typer.Exit(_on_ranks(ranks, run))

    def warn(line: str) -> None:
        print(f"dist-mp: {line}", file=sys.stderr)

    chosen = best_checkpoint(run, warn) if checkpoint == Which.best else newest_checkpoint(run, warn)
    os.environ.update(rank_environment(chosen.config().threads, os.environ))
    from dist_mp.train.predict_job import PredictRequest, run_predict

    request = PredictRequest(run, data, output, steps, part.value if part else None, scale == Scale.own)
    raise typer.Exit(run_predict(chosen, request))


def _on_ranks(ranks: int, run: Path) -> int:
    """The same command without -n, under mpirun."""
    from dist_mp.launch.job import run_job
    from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine
    from dist_mp.train.checkpoint_files import newest_checkpoint

    threads = newest_checkpoint(run).config().threads
    words = [sys.executable, "-m", "dist_mp", *_without_ranks(sys.argv[1:])]
    return run_job(job_command(find_mpirun(), ranks, words, machine=this_machine(), threads=threads))


def _without_ranks(words: list[str]) -> list[str]:
    """A command line without -n N, --ranks N and their other spellings."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("-n", "--ranks"):
            skip = True
        elif not word.startswith("--ranks=") and not (word.startswith("-n") and word[2:].isdigit()):
            kept.append(word)
    return kept
