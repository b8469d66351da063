"""The state of a run: copied from a trainer's parts for a checkpoint, and put back from one.

What all ranks share (masters, optimizer) does not depend on their number. What each has for itself (residuals of error
feedback, recurrent state, the model's own variables) is written by rank, and dealt anew to another number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp import __version__
from dist_mp.data.base import Split
from dist_mp.errors import UserError
from dist_mp.model.base import State
from dist_mp.train.checkpoint_files import Best, Checkpoint, Manifest
from dist_mp.train.parts import Parts

PIECE_BYTES = 128 << 20
"""From this size on, what the ranks share is written by several of them."""


@dataclass
class Position:
    """How far a run has come."""

    step: int = 0
    """Steps so far, skipped ones included."""
    epoch: int = 0
    """Epochs that are over, evaluation included."""
    cursor: list[tuple[int, int]] = field(default_factory=list)
    """What this epoch has held so far: global rows and steps, one pair for each number of ranks."""
    loss_sum: float = 0.0
    weight_sum: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last evaluation."""
    best: Best = field(default_factory=Best)

    @property
    def steps_in_epoch(self) -> int:
        """Steps of this epoch so far."""
        return sum(steps for _, steps in self.cursor)

    @classmethod
    def of(cls, manifest: Manifest) -> Position:
        """Where a checkpoint was written."""
        return cls(
            manifest.step,
            manifest.epoch,
            list(manifest.cursor),
            manifest.loss_sum,
            manifest.weight_sum,
            dict(manifest.metrics),
            manifest.best,
        )


@dataclass(frozen=True)
class Snapshot:
    """A copy of what this rank writes into a checkpoint: arrays by file, and what is not an array."""

    files: dict[str, dict[str, NDArray[Any]]]
    manifest: Manifest
    seconds: float = 0.0
    """How long the copy took."""


def host_copy(value: Any) -> NDArray[Any]:
    """A copy of a variable or tensor in host memory; 16-bit floats are widened to float32, which is exact."""
    array = np.array(value.numpy())
    return array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array


def rest_of_epoch(parts: Parts, at: Position) -> tuple[Split | None, int]:
    """What is left of the epoch that the position is in, None where nothing is, and the step at which to go on.

    The cursor of the position gets a pair for this number of global rows, if it has none.
    """
    rows, split = parts.global_rows, parts.dataset.train
    for old_rows, steps in at.cursor[:-1]:
        split = split.remainder(at.epoch, old_rows, steps)
    if at.cursor:
        old_rows, steps = at.cursor[-1]
        if steps >= split.steps(at.epoch, old_rows):
            return None, 0
        if old_rows == rows:
            return split, steps
        split = split.remainder(at.epoch, old_rows, steps)
    at.cursor = [*at.cursor, (rows, 0)]
    return split, 0


def capture(
    parts: Parts, at: Position, states: Sequence[State], metric: float | None = None, piece_bytes: int = PIECE_BYTES
) -> Snapshot:
    """Copy the state of this rank: its piece of what all share, and what it has for itself.

    Args:
        parts: the run.
        at: how far it has come.
        states: recurrent state of each micro-batch; empty between epochs.
        metric: `train.metric` of these weights, if they were evaluated.
        piece_bytes: from this size on, what is shared is written by several ranks.
    """
    begin = time.perf_counter()
    rank, size = parts.world.rank, parts.world.size
    shared: list[tuple[str, str, Any]] = [
        ("masters", path, master) for path, master in zip(parts.task.paths, parts.masters.masters, strict=True)
    ]
    slots = parts.masters.optimizer.variables
    shared += [("optimizer", f"{number:04d} {slot.name}", slot) for number, slot in enumerate(slots)]
    sizes = np.array([4 * int(np.prod(variable.shape)) for _, _, variable in shared], np.int64)
    writers = min(size, max(1, -(-int(sizes.sum()) // piece_bytes)))
    # The writer of an array follows from where its middle lies among all bytes.
    writer = ((np.cumsum(sizes) - sizes / 2) * writers // max(int(sizes.sum()), 1)).astype(int)
    files: dict[str, dict[str, NDArray[Any]]] = {}
    for (kind, name, variable), of in zip(shared, writer.tolist(), strict=True):
        if of == rank:
            piece = f"-{rank:05d}-of-{writers:05d}" if writers > 1 else ""
            files.setdefault(f"{kind}{piece}.safetensors", {})[name] = host_copy(variable)
    own: dict[str, NDArray[Any]] = {}
    for path, residual in zip(parts.task.paths, parts.allreduce.residuals(), strict=False):
        own[f"residual/{path}"] = residual
    for number, micros in enumerate(zip(*states, strict=True)):
        own[f"state/{number:04d}"] = np.concatenate([host_copy(state) for state in micros])
    for number, variable in enumerate(parts.task.model.non_trainable_variables):
        own[f"model/{number:04d} {variable.name}"] = host_copy(variable)
    files[f"rank-{rank:05d}.safetensors"] = own
    manifest = Manifest(
        dist_mp=__version__,
        written=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        step=at.step,
        epoch=at.epoch,
        cursor=at.cursor,
        ranks=size,
        loss_sum=at.loss_sum,
        weight_sum=at.weight_sum,
        loss_scale=parts.loss_scale.state(),
        metrics=at.metrics,
        metric=metric,
        best=at.best,
        config=parts.config.model_dump(),
        spec=asdict(parts.dataset.spec),
    )
    return Snapshot(files, manifest, time.perf_counter() - begin)


def restore(parts: Parts, checkpoint: Checkpoint, *, keep_scale: bool = True) -> tuple[list[State], list[str]]:
    """Put the state of a checkpoint into the parts of this rank.

    Args:
        parts: of a run with the same model.
        checkpoint: any number of ranks may have written it.
        keep_scale: take its loss scale; False where the settings of the scale have changed since.

    Returns:
        The recurrent state of each micro-batch, and a line on each thing that another number of ranks changes.

    Raises:
        UserError: the model or the optimizer is another one.
    """
    manifest, world = checkpoint.manifest, parts.world
    _restore_shared(parts, checkpoint)
    scale = dict(manifest.loss_scale)
    if not keep_scale:
        scale.pop("scale", None)
    parts.loss_scale.load(scale)
    states = [parts.task.initial_state(parts.config.train.batch_size) for _ in range(parts.micros)]
    notes = []
    own = _own(checkpoint, world.rank % manifest.ranks)
    for number, variable in enumerate(parts.task.model.non_trainable_variables):
        value = own.get(f"model/{number:04d} {variable.name}")
        if value is not None:
            variable.assign(value.astype(variable.dtype))
    residuals, averaged = _residuals(parts, checkpoint, own)
    if residuals:
        parts.allreduce.load_residuals(residuals)
    if manifest.ranks != world.size:
        notes.append(f"{world.size} ranks go on where {manifest.ranks} stopped")
    if averaged:
        notes.append("each rank has the mean of the residuals of error feedback")
    untrained = [v for v in parts.task.model.non_trainable_variables if "seed_generator" not in v.path]
    if manifest.ranks != world.size and untrained:
        notes.append("weights that are not trained are those of another rank")
    rows = manifest.cursor[-1][0] if manifest.cursor else parts.global_rows
    if manifest.cursor and states[0]:
        if rows == parts.global_rows:
            _restore_states(parts, checkpoint, own, states)
        else:
            notes.append("recurrent state begins at zero")
    if rows != parts.global_rows:
        notes.append(f"the global batch is {parts.global_rows} rows, it was {rows}")
    return states, notes


def _restore_shared(parts: Parts, checkpoint: Checkpoint) -> None:
    saved = checkpoint.masters()
    paths, masters = parts.task.paths, parts.masters
    if set(saved) != set(paths):
        missing = [path for path in paths if path not in saved] or [path for path in saved if path not in set(paths)]
        raise UserError(f"{checkpoint.folder}: is of another model: {missing[0]} is in one of them only")
    for path, master in zip(paths, masters.masters, strict=True):
        if saved[path].shape != tuple(master.shape):
            raise UserError(
                f"{checkpoint.folder}: is of another model: {path} has the shape {list(saved[path].shape)}, "
                f"here it has {list(master.shape)}"
            )
    masters.load([saved[path] for path in paths])
    slots = checkpoint.tensors("optimizer")
    for number, variable in enumerate(masters.optimizer.variables):
        value = next((v for name, v in slots.items() if name.startswith(f"{number:04d} ")), None)
        if value is None or len(slots) != len(masters.optimizer.variables) or value.shape != tuple(variable.shape):
            raise UserError(f"{checkpoint.folder}: is of another optimizer: slot {number} ({variable.name}) differs")
        variable.assign(value.astype(variable.dtype))


def _own(checkpoint: Checkpoint, rank: int) -> dict[str, NDArray[Any]]:
    return checkpoint.tensors(f"rank-{rank:05d}")


def _residuals(
    parts: Parts, checkpoint: Checkpoint, own: dict[str, NDArray[Any]]
) -> tuple[list[NDArray[np.float32]], bool]:
    """Of this rank's workers, and whether they are means.

    The same number of workers, virtual or not, get back their own. With another number each gets the mean of all, so
    that the mean over the workers stays.
    """
    names = [f"residual/{path}" for path in parts.task.paths]
    mine = parts.allreduce.residuals()
    if not mine or names[0] not in own:
        return [], False
    old, size = checkpoint.manifest.ranks, parts.world.size
    # Of a rank that is one worker an array is flat, of one that stands for several it is [workers, numbers].
    of_rank = len(np.reshape(own[names[0]], (-1, mine[0].shape[-1])))
    shapes = [residual.shape for residual in mine]
    if old == size and of_rank == parts.workers:
        return [own[name].reshape(shape) for name, shape in zip(names, shapes, strict=True)], False
    pieces = [_own(checkpoint, rank) for rank in range(old)]
    result = []
    for name, shape in zip(names, shapes, strict=True):
        workers = np.concatenate([piece[name].reshape(-1, shape[-1]) for piece in pieces])
        if len(workers) == parts.num_workers:
            first = parts.world.rank * parts.workers
            result.append(workers[first : first + parts.workers].reshape(shape))
        else:
            mean = workers.astype(np.float64).mean(axis=0).astype(np.float32)
            result.append(np.array(np.broadcast_to(mean, shape)))
    return result, old * of_rank != parts.num_workers


def _restore_states(parts: Parts, checkpoint: Checkpoint, own: dict[str, NDArray[Any]], states: list[State]) -> None:
    """The rows of this rank out of the same global batch, whoever held them."""
    old, size = checkpoint.manifest.ranks, parts.config.train.batch_size
    names = sorted(name for name in own if name.startswith("state/"))
    if old == parts.world.size:
        columns, first = [own[name] for name in names], 0
    else:
        pieces = [_own(checkpoint, rank) for rank in range(old)]
        columns = [np.concatenate([piece[name] for piece in pieces]) for name in names]
        first = parts.world.rank * parts.rows
    for micro, state in enumerate(states):
        rows = slice(first + micro * size, first + (micro + 1) * size)
        for number, (zero, column) in enumerate(zip(list(state), columns, strict=True)):
            state[number] = tf.cast(tf.constant(column[rows]), zero.dtype)
