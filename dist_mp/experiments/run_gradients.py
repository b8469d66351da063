"""The gradients that a training run meets, for what is said about codecs and number formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import Config
from dist_mp.data.base import Batch, Split
from dist_mp.data.open import open_dataset
from dist_mp.errors import UserError
from dist_mp.train.framework import import_tensorflow


def gradients_of_run(config: Config, steps: int) -> dict[str, NDArray[np.float32]]:
    """Train as one worker and give the gradients of the last step, by variable: FP32 numbers without the loss scale.

    Args:
        config: settings of the run; micro-batches are not accumulated.
        steps: steps to take, at least 1.

    Raises:
        UserError: the gradients of the last step are not finite, as at the start of a run in FP16 they may be.
    """
    dataset = open_dataset(config)
    import_tensorflow(config.threads, 0)

    import tensorflow as tf

    from dist_mp.model.build import build_task, initial_masters
    from dist_mp.precision.loss_scale import LossScale
    from dist_mp.precision.master import MasterWeights
    from dist_mp.precision.policy import host_features, resolve_precision
    from dist_mp.schedule import learning_rate
    from dist_mp.train.step import TrainStep, Window

    precision = resolve_precision(config.precision, bool(tf.config.list_physical_devices("GPU")), host_features())
    task = build_task(config, dataset.spec, precision.compute_dtype)
    initial = initial_masters(config, dataset.spec)
    masters = MasterWeights(task.model.trainable_variables, initial, config.optimizer, config.master_weights)
    scale, keeper = LossScale(config.loss_scale, precision.name), _Keeper()
    optimizer = config.optimizer
    step = TrainStep(task, masters, scale, keeper, num_workers=1, clip_norm=optimizer.clip_norm, l2=optimizer.l2)
    rows = config.train.batch_size
    state, before, finite = task.initial_state(rows), 1.0, False
    for number, (epoch, batch) in zip(range(steps), _batches(dataset.train, rows), strict=False):
        before = float(scale.scale)
        window = Window(*(tf.constant(a) for a in (batch.inputs, batch.targets, batch.weight, batch.reset)))
        total = tf.constant(max(float(batch.weight.sum()), 1.0), tf.float32)
        seed = np.random.SeedSequence((config.seed, number, 0, 0)).generate_state(2).view(np.int32)
        rate = tf.constant(learning_rate(config.schedule, number, epoch, 1), tf.float32)
        result = step.update(window, state, total, tf.constant(seed), rate)
        state, finite = result.state, bool(result.finite)
    if not finite:
        raise UserError(f"the gradients of step {steps - 1} are not finite at loss scale {before:g}: take more steps")
    return {path: gradient / np.float32(before) for path, gradient in zip(task.paths, keeper.last, strict=True)}


def _batches(split: Split, rows: int) -> Iterator[tuple[int, Batch]]:
    """Batches of one epoch after the other, with the epoch's number."""
    for epoch in count():
        for batch in split.batches(epoch, rows, 0, rows):
            yield epoch, batch


class _Keeper:
    """The exchange of a single worker, which keeps the gradients of the last step."""

    def __init__(self) -> None:
        self.last: list[NDArray[np.float32]] = []

    def __call__(self, gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the gradients, in FP32, as their own means."""
        import tensorflow as tf

        @tf.autograph.experimental.do_not_convert
        def keep(*means: NDArray[np.float32]) -> list[NDArray[np.float32]]:
            self.last = [np.array(mean, np.float32) for mean in means]
            return self.last

        means = [tf.cast(gradient, tf.float32) for gradient in gradients]
        kept = tf.numpy_function(keep, means, [tf.float32] * len(means))
        for mean, tensor in zip(means, kept, strict=True):
            tensor.set_shape(mean.shape)
        return kept, kept
