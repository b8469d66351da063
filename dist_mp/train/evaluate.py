"""Held-out metrics, exact on any number of ranks: sums over valid steps, and per-shot scores gathered from all."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.config import Config, ShotWindows
from dist_mp.data.base import Batch, Split
from dist_mp.data.shots import ShotSplit
from dist_mp.model.base import State, Task, reset_rows
from dist_mp.train.classification import classification_metrics
from dist_mp.train.roc import ShotMaxima, WarningRules, roc, shot_maxima


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


class ShotCollector:
    """Area under the ROC curve over shots, by the warning-time rules of :mod:`dist_mp.train.roc`."""

    wants_scores = True

    def __init__(self, settings: ShotWindows, split: ShotSplit) -> None:
        """Score the shots of `split`."""
        self._rules = WarningRules(settings.warning_steps, settings.deadline_steps, settings.ignore_steps)
        self._split = split
        self._seen: dict[int, ShotMaxima] = {}

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take the windows of this rank; a shot's windows merge by maximum."""
        if batch.sequence is None or batch.position is None:
            raise ValueError("windows of shots carry their sequence and position")
        for row in np.flatnonzero(batch.sequence >= 0):
            shot, valid = int(batch.sequence[row]), batch.weight[row] > 0
            length, disruptive = int(self._split.lengths[shot]), bool(self._split.disruptive[shot])
            part = shot_maxima(scores[row, valid], int(batch.position[row]), length, disruptive, self._rules)
            self._seen[shot] = part.merge(self._seen[shot]) if shot in self._seen else part

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """The area under the curve; NaN where a score is, or where the split lacks a class."""
        merged: dict[int, ShotMaxima] = {}
        for seen in world.allgather(self._seen):
            for shot, part in seen.items():
                merged[shot] = part.merge(merged[shot]) if shot in merged else part
        self._seen = {}
        return {"auc": roc(merged.values()).auc}


class ClassCollector:
    """Accuracy, F1 and, of two classes, the area under the ROC curve, over the sequences of a split."""

    wants_scores = True

    def __init__(self) -> None:
        """Begin without sequences."""
        self._labels: list[NDArray] = []
        self._scores: list[NDArray] = []

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take the label and the scores at the last valid step of each sequence."""
        labelled = batch.weight > 0
        self._labels.append(batch.targets[labelled])
        self._scores.append(scores[labelled])

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """The metrics of :func:`dist_mp.train.classification.classification_metrics`."""
        parts = world.allgather((np.concatenate(self._labels), np.concatenate(self._scores)))
        self._labels, self._scores = [], []
        labels, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return classification_metrics(labels, scores)


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
        totals = world.agree(np.array([loss_sum, weight_sum])).sum(axis=0)
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
