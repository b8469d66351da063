"""Training of any Keras model on all ranks with one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.abort import abort_on_exception
from dist_mp.comm.world import World
from dist_mp.config import ScheduleConfig
from dist_mp.errors import UserError
from dist_mp.schedule import learning_rate
from dist_mp.train.fit_checkpoint import FitCheckpoints
from dist_mp.train.optimizer import DistributedOptimizer, broadcast_variables


class _Rows(keras.utils.PyDataset):
    """The rows of one rank of each global batch, reshuffled each epoch by the seed."""

    def __init__(self, x: NDArray, y: NDArray, rows: int, world: World, seed: int) -> None:
        super().__init__(workers=1)
        self._x, self._y, self._rows, self._rank, self._size = x, y, rows, world.rank, world.size
        self._seed, self._epoch = seed, 0
        self._order = self._permutation()

    def _permutation(self) -> NDArray[np.int64]:
        return np.random.default_rng((self._seed, self._epoch)).permutation(len(self._x))

    def __len__(self) -> int:
        return len(self._x) // (self._rows * self._size)

    def __getitem__(self, index: int) -> tuple[NDArray, NDArray]:
        first = (index * self._size + self._rank) * self._rows
        chosen = self._order[first : first + self._rows]
        return self._x[chosen], self._y[chosen]

    def on_epoch_end(self) -> None:
        self.begin(self._epoch + 1)

    def begin(self, epoch: int) -> None:
        """Take the order of an epoch."""
        self._epoch = epoch
        self._order = self._permutation()


class _Rate(keras.callbacks.Callback):
    """Sets the learning rate of the schedule before each step."""

    def __init__(self, schedule: ScheduleConfig, workers: int, first_step: int) -> None:
        super().__init__()
        self._schedule, self._workers, self._step, self._epoch = schedule, workers, first_step, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate = learning_rate(self._schedule, self._step, self._epoch, self._workers)
        self.model.optimizer.learning_rate = rate
        self._step += 1


def fit(
    model: keras.Model,
    data: tuple[NDArray, NDArray],
    *,
    loss: str | Callable[..., Any],
    optimizer: str | keras.Optimizer = "sgd",
    schedule: ScheduleConfig | None = None,
    batch_size: int = 32,
    epochs: int = 1,
    validation: tuple[NDArray, NDArray] | None = None,
    metrics: Sequence[Any] = (),
    codec: str = "fp32",
    algorithm: str = "shared",
    seed: int = 1,
    folder: str | Path | None = None,
    world: World | None = None,
) -> dict[str, list[float]]:
    """Train a Keras model data-parallel on all ranks. Collective.

    All ranks end with the same weights: they start from rank 0's, and average their gradients in FP32 at each step.
    The model computes in its own dtype policy. What a model keeps beside trainable weights (the moving averages of a
    batch normalisation) is taken from rank 0 at the end.

    Args:
        model: built or not, the same on every rank.
        data: inputs and targets, the first axis numbers the samples; the same arrays on every rank, of which each
            reads its own rows. What does not fill a global batch is left out of an epoch, others in each.
        loss: Keras's name of a loss, or a loss.
        optimizer: a Keras optimizer or its name.
        schedule: learning rate for so many workers (:mod:`dist_mp.schedule`); None keeps the optimizer's own rate.
        batch_size: samples a rank and step.
        epochs: passes over the data.
        validation: inputs and targets, evaluated after each epoch, by each rank its share.
        metrics: as in `keras.Model.compile`.
        codec: what a gradient's number is on the wire.
        algorithm: of the exchange.
        seed: of the order of the samples.
        folder: gets a checkpoint after each epoch, and if it holds one, training goes on after it; None for none.
        world: the ranks; None opens MPI, and from then on a failing rank ends the job.

    Returns:
        For each epoch that was trained here the mean over the ranks of what Keras reports: loss, metrics, and both of
        the validation.

    Raises:
        UserError: arrays of different lengths, too few samples, a wrapped or used optimizer, ranks that differ.
    """
    if world is None:
        world = World.open()
        abort_on_exception(world)
    x, y = data
    for name, pair in (("data", data), ("validation", validation)):
        if pair is not None and len(pair[0]) != len(pair[1]):
            raise UserError(f"fit: {name} has {len(pair[0])} inputs but {len(pair[1])} targets")
    rows = _Rows(x, y, batch_size, world, seed)
    if not len(rows):
        raise UserError(f"fit: {len(x)} samples are fewer than a batch of {batch_size} x {world.size} ranks")
    if not model.built:
        model.build((None, *x.shape[1:]))
    broadcast_variables(world, model.variables)
    held_out = None if validation is None else _share(validation, world)
    averaging = DistributedOptimizer(optimizer, world, codec=codec, algorithm=algorithm)
    # The exchange calls the host from within the graph, which XLA cannot.
    model.compile(optimizer=averaging, loss=loss, metrics=list(metrics), jit_compile=False)
    done, callbacks = 0, []
    if folder is not None:
        averaging.build(model.trainable_variables)
        checkpoints = FitCheckpoints(Path(folder), world, averaging, len(rows))
        done = checkpoints.restore(model)
        rows.begin(done)
        callbacks.append(checkpoints)
    if schedule is not None:
        callbacks.append(_Rate(schedule, world.size, done * len(rows)))
    history = model.fit(
        rows,
        epochs=epochs,
        initial_epoch=min(done, epochs),
        shuffle=False,
        validation_data=held_out,
        validation_batch_size=batch_size,
        callbacks=callbacks,
        verbose=2 if world.rank == 0 else 0,
    )
    averaging.close()
    broadcast_variables(world, model.non_trainable_variables)
    curves: dict[str, list[float]] = {}
    for name, values in history.history.items():
        weight = 1.0 if held_out is None or not name.startswith("val_") else float(len(held_out[0]))
        columns = world.agree(np.array([weight, *(weight * v for v in values)])).sum(axis=0)
        curves[name] = [float(v / columns[0]) for v in columns[1:]]
    return curves


def _share(pair: tuple[NDArray, NDArray], world: World) -> tuple[NDArray, NDArray]:
    count = math.ceil(len(pair[0]) / world.size)
    if count * (world.size - 1) >= len(pair[0]):
        raise UserError(f"fit: {len(pair[0])} validation samples are too few for {world.size} ranks")
    rows = slice(world.rank * count, (world.rank + 1) * count)
    return pair[0][rows], pair[1][rows]
