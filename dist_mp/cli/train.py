"""``dist-mp train``: one rank of a job that mpirun or srun started, or a whole job without them."""

from __future__ import annotations

import importlib.util
import os

import typer

from dist_mp.cli.arguments import ConfigArgument, OverridesArgument, TimelineOption
from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.launch.mpirun import rank_environment


def train(configuration: ConfigArgument, overrides: OverridesArgument = None, timeline: TimelineOption = False) -> None:
    """Train as one rank of a job started by mpirun or srun, or alone.

    On a cluster, with its own mpirun: mpirun -np 4 python -m dist_mp train configs/quickstart.yaml
    """
    from dist_mp import settings

    words = [*(overrides or []), *(["timeline=true"] if timeline else [])]
    raise typer.Exit(train_here(settings.load(configuration, words)))


def train_here(config: Config) -> int:
    """Train in this process, as one of the ranks that are there; returns the exit status."""
    require_tensorflow()
    # Libraries read these when they are imported, which comes later.
    os.environ.update(rank_environment(config.threads, os.environ))
    from dist_mp.train.job import run

    return run(config)


def require_tensorflow() -> None:
    """Raise a UserError that says what to install where there is no TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError("TensorFlow is not installed: pip install 'dist-mp[cpu]', or 'dist-mp[gpu]' where a GPU is")
