"""``dist-mp train``: one rank of a job that mpirun or srun started, or a whole job without them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import typer

from dist_mp.cli.arguments import (
    IntoOption,
    OptionalConfigArgument,
    OverridesArgument,
    ResumeOption,
    TimelineOption,
    configuration_of,
)
from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.launch.mpirun import rank_environment


def train(
    configuration: OptionalConfigArgument = None,
    overrides: OverridesArgument = None,
    timeline: TimelineOption = False,
    resume: ResumeOption = None,
    into: IntoOption = None,
) -> None:
    """Train as one rank of a job started by mpirun or srun, or alone.

    On a cluster, with its own mpirun: mpirun -np 4 python -m dist_mp train configs/quickstart.yaml
    """
    from dist_mp import settings

    name, words = configuration_of(configuration, overrides, timeline, resume, into)
    raise typer.Exit(train_here(settings.load(name, words), resume, into))


def train_here(config: Config, resume: Path | None = None, into: Path | None = None) -> int:
    """Train in this process, as one of the ranks that are there; returns the exit status."""
    require_tensorflow()
    # Libraries read these when they are imported, which comes later.
    os.environ.update(rank_environment(config.threads, os.environ))
    from dist_mp.train.job import run
    from dist_mp.train.run_folder import RunRequest

    return run(config, RunRequest(resume or into, new_is_fine=into is not None))


def require_tensorflow() -> None:
    """Raise a UserError that says what to install where there is no TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError("TensorFlow is not installed: pip install 'dist-mp[cpu]', or 'dist-mp[gpu]' where a GPU is")
