"""``dist-mp export``: the weights of a run for programs without dist_mp."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dist_mp.cli.train import require_tensorflow
from dist_mp.launch.mpirun import rank_environment


class Dtype(StrEnum):
    """Types of the weights."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


class Which(StrEnum):
    """Checkpoints of a run."""

    newest = "newest"
    best = "best"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A folder that is not there yet.")],
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights and of the computation.")] = Dtype.fp32,
    checkpoint: Annotated[Which, typer.Option(help="The newest one, or the best by train.metric.")] = Which.newest,
) -> None:
    """Write the weights of a run as a Keras model (model.keras) and a SavedModel that load without dist_mp."""
    require_tensorflow()
    os.environ.update(rank_environment(1, os.environ))
    from dist_mp.train.checkpoint_files import best_checkpoint, newest_checkpoint

    def warn(line: str) -> None:
        print(f"dist-mp: {line}", file=sys.stderr)

    chosen = best_checkpoint(run, warn) if checkpoint == Which.best else newest_checkpoint(run, warn)
    from dist_mp.train.framework import import_tensorflow

    import_tensorflow(1, 0)
    from dist_mp.train.export import export_checkpoint

    export_checkpoint(chosen, output, dtype.value)
    print(f"{output}: model.keras and saved_model, the weights after step {chosen.manifest.step} in {dtype.value}")
