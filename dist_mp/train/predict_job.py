"""One rank of a prediction, from a checkpoint to tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from dist_mp.comm.abort import abort_on_exception, fail
from dist_mp.comm.world import World
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.train.checkpoint_files import Checkpoint
from dist_mp.train.framework import import_tensorflow
from dist_mp.train.table import write_csv, write_table


@dataclass(frozen=True)
class PredictRequest:
    """What to predict on, and where the tables go."""

    run: Path
    data: Path | None = None
    """None: a part of the run's own data."""
    output: Path | None = None
    """None: CSV on standard output."""
    steps: Path | None = None
    part: str | None = None
    own_scale: bool = False


def run_predict(checkpoint: Checkpoint, request: PredictRequest) -> int:
    """Predict as one of the ranks that mpirun or srun started, or alone; returns the exit status."""
    world = World.open()
    abort_on_exception(world)
    with world:
        try:
            _predict(world, checkpoint, request)
        except UserError as error:
            fail(world, error)
    return 0


def _predict(world: World, checkpoint: Checkpoint, request: PredictRequest) -> None:
    config = checkpoint.config()
    world.watch(config.exchange.timeout_seconds)
    spec = DataSpec(**checkpoint.manifest.spec)
    import_tensorflow(config.threads, world.local_rank)

    from dist_mp.train.predict import Predictor, find_data

    data, step = find_data(config, spec, request.run, request.data, request.part, request.own_scale)
    found = Predictor(world, checkpoint, spec).predict(data, request.run, step)
    if request.steps is not None and not found.steps:
        raise UserError(f"--steps {request.steps}: samples of classes have one prediction each; there are no steps")
    if world.rank:
        return
    if request.output is None:
        write_csv(sys.stdout, found.rows)
    else:
        write_table(request.output, found.rows)
    if request.steps is not None:
        write_table(request.steps, found.steps)
    counted = len(next(iter(found.rows.values())))
    metrics = "".join(f", {name} {value:.4f}" for name, value in found.metrics.items())
    where = f" in {request.output}" if request.output is not None else ""
    kind = next(iter(found.rows))
    print(f"{counted:,} {kind}s{where}, weights after step {checkpoint.manifest.step}{metrics}", file=sys.stderr)
