"""Small training runs for tests: settings, and a trainer that leaves its parts to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.base import Dataset
from dist_mp.train.records import Record, RecordWriter, SummaryRecord

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


class Kept(RecordWriter):
    """Keeps its records, on every rank; `at_step` is called with the number of each step that is over."""

    def __init__(self, at_step: Any = None) -> None:
        super().__init__(None)
        self.records: list[Record] = []
        self.weight = 0.0
        """Sum of weights of the last epoch, all of its steps, those before a resume too."""
        self.position: Any = None
        self._at_step = at_step

    def write(self, record: Record) -> None:
        self.records.append(record)
        if record.kind == "epoch" and self.position is not None:
            self.weight = self.position.weight_sum
        if record.kind == "step" and self._at_step:
            self._at_step(record.step + 1)

    def trace(self) -> list[tuple[Any, ...]]:
        """What of the steps and epochs must be the same to the bit in a run that was interrupted."""
        found: list[tuple[Any, ...]] = []
        for r in self.records:
            if r.kind == "step":
                numbers = (r.loss, r.learning_rate, r.loss_scale, r.applied, r.gradient_norm)
                found.append((r.step, r.epoch, *map(repr, numbers)))  # NaN is not equal to itself
            elif r.kind == "epoch":
                found.append(("epoch", r.epoch, r.steps, repr(r.train_loss), repr(r.metrics)))
        return found


def make_parts(world: World, config: Config, folder: Path | None = None, dataset: Dataset | None = None) -> Any:
    """The parts of a run; the state that they are made in is the first checkpoint of `folder`."""
    from dist_mp.data.open import open_dataset
    from dist_mp.train.assemble import assemble
    from dist_mp.train.checkpoint import Checkpointer
    from dist_mp.train.state import Position, capture

    parts = assemble(world, config, dataset or open_dataset(config))
    if folder is not None:
        if world.rank == 0:
            (folder / "checkpoints").mkdir(parents=True)
        world.barrier()
        checkpointer = Checkpointer(world, config.checkpoint, folder)
        checkpointer.save(capture(parts, Position(), []))
        checkpointer.finish()
        world.barrier()
    return parts


def spoil(parts: Any) -> None:
    """Put nonsense into all state, so that what a checkpoint does not bring back is noticed."""
    parts.loss_scale.load({"scale": 7, "clean_steps": 1, "skips_in_a_row": 2, "skipped_steps": 7, "applied_steps": 7})
    parts.masters.load([np.full(v.shape, 7, np.float32) for v in parts.task.variables])
    for variable in [*parts.masters.optimizer.variables, *parts.task.model.non_trainable_variables]:
        variable.assign(np.full(variable.shape, 7, variable.dtype))
    parts.allreduce.load_residuals([np.full_like(residual, 7) for residual in parts.allreduce.residuals()])


def resume(
    parts: Any, folder: Path, *, stop_after: int | None = None, stop_rank: int = 0, piece_bytes: int | None = None
) -> tuple[Any, SummaryRecord | None, Kept, list[str]]:
    """Train from the newest checkpoint of `folder` on; whatever state the parts are in, it is replaced.

    Rank `stop_rank` is asked to stop when it writes down step `stop_after`, and all stop after the next one. Returns
    trainer, summary, records, and what the resume said.
    """
    from dist_mp.train import loop, state
    from dist_mp.train.checkpoint import Checkpointer
    from dist_mp.train.checkpoint_files import newest_checkpoint
    from dist_mp.train.progress import ProgressDisplay
    from dist_mp.train.stopping import StopRequest

    checkpoint = newest_checkpoint(folder)
    spoil(parts)
    states, notes = state.restore(parts, checkpoint)
    parts.world.barrier()
    stop = StopRequest()

    def at_step(step: int) -> None:
        if step == stop_after and parts.world.rank == stop_rank:
            stop.number = 15

    kept = Kept(at_step)
    if piece_bytes is not None:
        loop.capture = lambda *a: state.capture(*a, piece_bytes=piece_bytes)
    try:
        trainer = loop.Trainer(
            parts,
            kept,
            ProgressDisplay(None, 1),
            checkpointer=Checkpointer(parts.world, parts.config.checkpoint, folder),
            stop=stop,
            start=state.Position.of(checkpoint.manifest),
            states=states,
        )
        kept.position = trainer._at
        summary = trainer.run("")
    finally:
        loop.capture = state.capture
    parts.world.barrier()
    return trainer, summary, kept, notes
