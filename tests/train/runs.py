"""Small training runs for tests: settings, and a trainer that leaves its parts to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.base import Dataset
from dist_mp.train.records import RecordWriter, SummaryRecord

SMALL: dict[str, Any] = {
    "precision": "fp32",
    "data": {
        "kind": "campaign", "shots": 24, "min_steps": 40, "max_steps": 90, "profile_points": 24, "length": 16,
        "warning_steps": 20, "deadline_steps": 3, "ignore_steps": 2,
    },
    "model": {"kind": "disruption", "layers": 2, "units": 8, "filters": 4, "profile_dense": 8},
    "optimizer": {"name": "momentum", "clip_norm": 0.5},
    "schedule": {"base": 0.05, "rule": "constant"},
    "train": {"batch_size": 12, "epochs": 100, "max_steps": 20, "eval_every": 100, "check_weights_every": 5},
}  # fmt: skip


def settings(**sections: Any) -> Config:
    """SMALL with some of its sections changed: `settings(precision="fp16", train={"max_steps": 3})`."""
    merged = {
        key: value | sections.get(key, {}) if isinstance(value, dict) else sections.get(key, value)
        for key, value in (SMALL | {k: {} for k in ("loss_scale", "exchange") if k in sections}).items()
    }
    return Config.model_validate(merged)


def one_thread() -> None:
    """TensorFlow on one thread, so that sums have one order."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def alone(world: World) -> World:
    """A world of this rank only, for the run that all others are compared with."""
    return World(world.mpi, comm=world.mpi.COMM_SELF)


def train(
    world: World, config: Config, dataset: Dataset | None = None, records: Path | None = None
) -> tuple[Any, SummaryRecord]:
    """Train as the ranks of `world`; returns the parts and the summary."""
    from dist_mp.data.open import open_dataset
    from dist_mp.train.assemble import assemble
    from dist_mp.train.loop import Trainer
    from dist_mp.train.progress import ProgressDisplay

    parts = assemble(world, config, dataset or open_dataset(config))
    with RecordWriter(records) as writer:
        summary = Trainer(parts, writer, ProgressDisplay(None, 1)).run("")
    parts.allreduce.close()
    return parts, summary
