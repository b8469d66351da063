"""Held-out metrics, exact on any number of ranks: exact sums over windows, and scores gathered from all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.config import Config, ShotWindows
from dist_mp.data.base import Batch, DataSpec, Split
from dist_mp.data.shapes import ShapeSplit
from dist_mp.data.shots import ShotSplit
from dist_mp.model.base import State, Task, reset_rows
from dist_mp.train.alarms import ShotTrace, TraceParts, join_traces
from dist_mp.train.classification import classification_metrics
from dist_mp.train.detection import DetectionCollector
from dist_mp.train.generation import ImageCollector
from dist_mp.train.roc import ShotMaxima, WarningRules, roc, shot_maxima
from dist_mp.train.tokens import TokenCollector


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
        return {"perplexity": perplexity(mean_loss)}


def perplexity(mean_loss: float) -> float:
    """Of a mean loss in nats; infinite beyond what a float64 holds."""
    return math.exp(mean_loss) if not mean_loss >= 700 else math.inf


class ShotCollector:
    """Area under the ROC curve over shots, by the warning-time rules of :mod:`dist_mp.train.roc`."""

    wants_scores = True

    def __init__(self, settings: ShotWindows, split: ShotSplit) -> None:
        """Score the shots of `split`."""
        self.rules = WarningRules(settings.warning_steps, settings.deadline_steps, settings.ignore_steps)
        self.split = split
        self._parts = TraceParts()

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take the windows of this rank."""
        self._parts.add(batch, scores)

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """The area under the curve; NaN where a score is, or where the split lacks a class."""
        merged: dict[int, ShotMaxima] = {}
        # Maxima only: far less than the scores of all steps.
        for seen in world.allgather(self._maxima()):
            for shot, part in seen.items():
                merged[shot] = part.merge(merged[shot]) if shot in merged else part
        return {"auc": roc(merged.values()).auc}

    def _maxima(self) -> dict[int, ShotMaxima]:
        """Of the shots, or the parts of them, that this rank saw."""
        seen: dict[int, ShotMaxima] = {}
        for (shot, position), scores in self._parts.pieces.items():
            length, disruptive = int(self.split.lengths[shot]), bool(self.split.disruptive[shot])
            part = shot_maxima(scores, position, length, disruptive, self.rules)
            seen[shot] = part.merge(seen[shot]) if shot in seen else part
        return seen

    def traces(self, world: World) -> list[ShotTrace]:
        """The scores of all steps of all shots, on every rank. Collective."""
        parts = world.allgather(self._parts.pieces)
        return join_traces(parts, self.split.numbers, self.split.lengths, self.split.disruptive)


class ClassCollector:
    """Accuracy, F1 and the area under the ROC curve, over the sequences of a split."""

    wants_scores = True

    def __init__(self, classes: int) -> None:
        """Begin without sequences, of so many classes."""
        self._numbers: list[NDArray] = [np.empty(0, np.int64)]
        self._labels: list[NDArray] = [np.empty(0, np.int64)]
        self._scores: list[NDArray] = [np.empty((0, classes), np.float32)]

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take the label and the scores at the last valid step of each sequence."""
        labelled = batch.weight > 0
        rows = np.nonzero(labelled)[0]
        numbers = np.zeros(len(batch.inputs), np.int64) if batch.sequence is None else batch.sequence
        self._numbers.append(numbers[rows])
        self._labels.append(batch.targets[labelled])
        self._scores.append(scores[labelled])

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """The metrics of :func:`dist_mp.train.classification.classification_metrics`."""
        _, labels, scores = self.gathered(world)
        return classification_metrics(labels, scores)

    def gathered(self, world: World) -> tuple[NDArray, NDArray, NDArray]:
        """Numbers [N], labels [N] and scores [N, classes] of all samples, by rising number. Collective."""
        own = tuple(np.concatenate(column) for column in (self._numbers, self._labels, self._scores))
        numbers, labels, scores = (np.concatenate(c) for c in zip(*world.allgather(own), strict=True))
        order = np.argsort(numbers, kind="stable")
        return numbers[order], labels[order], scores[order]


class ExactSum:
    """A sum that does not depend on the order of its terms: whole multiples of 2^-32; NaN once a term is not finite."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._units: int | None = 0

    def add(self, terms: NDArray[np.float64]) -> None:
        """Add terms [N]."""
        if not np.isfinite(terms).all():
            self._units = None
        if self._units is not None:
            self._units += sum(int(term) for term in np.rint(terms * 2.0**32).tolist())

    def over_ranks(self, world: World) -> float:
        """The sum over all ranks. Collective."""
        units = world.allgather(self._units)
        return math.nan if None in units else sum(units) / 2.0**32


class Evaluator:
    """Runs the model over a split, in windows with carried state, without dropout."""

    def __init__(
        self, world: World, config: Config, task: Task, split: Split, make_collector: Callable[[Split], Collector]
    ) -> None:
        """Evaluate `split` with `config.train.eval_batch_size` rows a rank."""
        self._world = world
        self._rows = config.train.eval_batch_size or config.train.batch_size
        self._task = task
        self._split = split
        self._make_collector = make_collector
        self._seed = tf.zeros(2, tf.int32)
        self.collector = make_collector(split)
        """What the last run collected."""
        self.evaluated: Split | None = None
        """What the last run was of."""
        self.loss = math.nan
        """Mean loss of the last run."""
        self.weight = 0.0
        """Valid steps, or samples, of the last run."""
        self.metrics: dict[str, float] = {}
        """Of the last run, beside the loss."""
        self.before_window: Callable[[], None] = lambda: None
        """Called before each window, on every rank; may raise, on all ranks at once, to end an evaluation early."""

    def run(self, split: Split | None = None) -> dict[str, float]:
        """Mean loss and metrics of `split`, or of the one given at first: the same numbers on every rank."""
        world, rows = self._world, self._rows
        split = self._split if split is None else split
        self.collector = self._make_collector(split)
        losses, weight = ExactSum(), ExactSum()
        state = self._task.initial_state(rows)
        for batch in split.batches(0, rows * world.size, world.rank * rows, rows):
            self.before_window()
            arrays = (batch.inputs, batch.targets, batch.weight, batch.reset)
            row_losses, scores, state = self._forward(*map(tf.constant, arrays), state)
            losses.add(row_losses.numpy())
            weight.add(batch.weight.sum(axis=1, dtype=np.float64))
            if self.collector.wants_scores:
                self.collector.add(batch, scores.numpy())
        self.weight = weight.over_ranks(world)
        self.loss = losses.over_ranks(world) / max(self.weight, 1.0)
        self.evaluated = split
        self.metrics = self.collector.metrics(world, self.loss)
        return {"loss": self.loss} | self.metrics

    @tf.function
    def _forward(
        self, inputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor, reset: tf.Tensor, state: State
    ) -> tuple[tf.Tensor, tf.Tensor, State]:
        before = reset_rows(state, reset)
        outputs, state = self._task.forward(inputs, before, training=False, seed=self._seed, weight=weight)
        losses = self._task.losses(outputs, targets, weight)
        weighted = tf.cast(tf.where(weight > 0, losses * weight, 0.0), tf.float64)
        sums = tf.reduce_sum(weighted, axis=1)
        return sums, self._task.scores(outputs) if self.collector.wants_scores else sums, state


def collector_for(spec: DataSpec, model: str) -> Callable[[Split], Collector]:
    """Makes the collector of what is evaluated of a `model` (its kind in the settings) on a split of such data."""

    def make(split: Split) -> Collector:
        if isinstance(split, ShotSplit):
            return ShotCollector(split.settings, split)
        if isinstance(split, ShapeSplit):
            return DetectionCollector(split)
        if model == "gan":
            return ImageCollector()
        if spec.target_vocabulary:
            return TokenCollector()
        if spec.classes:
            return ClassCollector(spec.classes)
        return PerplexityCollector()

    return make
