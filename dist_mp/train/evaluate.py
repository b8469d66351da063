"""Held-out metrics, exact on any number of ranks: sums over valid steps, and per-shot scores gathered from all."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.config import CampaignData, Config
from dist_mp.data.base import Batch, Split
from dist_mp.model.base import State, Task, reset_rows


class Collector(Protocol):
    """Turns the scores of this rank's windows into metrics of the whole split."""

    wants_scores: bool
    """Whether :meth:`add` looks at scores; where not, they are never copied to the host."""

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take the scores [B, T] of a window."""
        ...

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """Gather from all ranks; every rank calls it and gets the same numbers."""
        ...


class PerplexityCollector:
    """Perplexity: the exponential of the mean loss over all words."""

    wants_scores = False

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Nothing to take: the loss is all."""

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """The perplexity of the split."""
        return {"perplexity": math.exp(mean_loss) if mean_loss < 700 else math.inf}


class Evaluator:
    """Runs the model over a split, in windows with carried state, without dropout."""

    def __init__(self, world: World, config: Config, task: Task, split: Split, collector: Collector) -> None:
        """Evaluate `split` with `config.train.eval_batch_size` rows a rank."""
        self._world = world
        self._rows = config.train.eval_batch_size or config.train.batch_size
        self._task = task
        self._split = split
        self._collector = collector
        self._seed = tf.zeros(2, tf.int32)

    def run(self) -> dict[str, float]:
        """The split's mean loss and metrics, the same numbers on every rank."""
        world, rows = self._world, self._rows
        state = self._task.initial_state(rows)
        loss_sum = weight_sum = 0.0
        for batch in self._split.batches(0, rows * world.size, world.rank * rows, rows):
            arrays = (batch.inputs, batch.targets, batch.weight, batch.reset)
            loss, scores, state = self._forward(*map(tf.constant, arrays), state)
            loss_sum += float(loss)
            weight_sum += float(batch.weight.sum(dtype=np.float64))
            if self._collector.wants_scores:
                self._collector.add(batch, scores.numpy())
        totals = world.agree(np.array([loss_sum, weight_sum] + [0.0] * 5)).sum(axis=0)
        mean_loss = float(totals[0] / max(totals[1], 1.0))
        return {"loss": mean_loss} | self._collector.metrics(world, mean_loss)

    @tf.function
    def _forward(
        self, inputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor, reset: tf.Tensor, state: State
    ) -> tuple[tf.Tensor, tf.Tensor, State]:
        outputs, state = self._task.forward(inputs, reset_rows(state, reset), training=False, seed=self._seed)
        losses = self._task.losses(outputs, targets, weight)
        total = tf.reduce_sum(tf.where(weight > 0, losses * weight, 0.0))
        return total, self._task.scores(outputs) if self._collector.wants_scores else total, state
