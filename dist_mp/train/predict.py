"""Predictions of a trained model, on any number of ranks: a row a shot, a sample or a line of text, and a row a step.

The model is that of a checkpoint in the precision of its run, its masters rounded once, as in evaluation: on held-out
data the predictions are those behind the run's `evaluation.json`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.base import Batch, Dataset, DataSpec, Split
from dist_mp.data.open import open_dataset
from dist_mp.data.shots import ShotDataset, ShotSplit
from dist_mp.data.unseen import Unseen, open_unseen
from dist_mp.errors import UserError
from dist_mp.model.base import State, reset_rows
from dist_mp.model.build import assign_working, build_task
from dist_mp.precision.policy import host_features, resolve_precision
from dist_mp.train.alarms import TraceParts, join_traces
from dist_mp.train.checkpoint_files import Checkpoint
from dist_mp.train.classification import classification_metrics, softmax
from dist_mp.train.data_state import read_data_state
from dist_mp.train.evaluate import ClassCollector, perplexity
from dist_mp.train.final import FILE as EVALUATION
from dist_mp.train.platt import Logistic
from dist_mp.train.roc import WarningRules, roc
from dist_mp.train.shot_report import alarm_of
from dist_mp.train.table import Columns


@dataclass(frozen=True)
class Predictions:
    """Two tables, and what they come to where the truth is known."""

    rows: Columns
    """A row a shot, a sample or a line of text."""
    steps: Columns
    """A row a time step of a shot or a word of a text; empty for samples."""
    metrics: dict[str, float] = field(default_factory=dict)


def find_data(
    config: Config, spec: DataSpec, run: Path, path: Path | None, part: str | None, own_scale: bool
) -> tuple[Unseen, float]:
    """The data to predict on, and the time step of shots (ms): a path, or a part of the run's own data (None).

    Raises:
        UserError: no such part, or data that the model does not fit.
    """
    if path is not None:
        state = read_data_state(run)
        step = float(state.get("step_milliseconds", 1.0))
        return open_unseen(config, spec, state, path, part or "test", own_scale), step
    if own_scale:
        raise UserError("--scale own: is for shots of another machine; name their folder")
    dataset = open_dataset(config)
    if dataset.spec != spec:
        raise UserError(f"{run}: its data have changed since it was trained: {dataset.spec} instead of {spec}")
    step = dataset.source.step_milliseconds if isinstance(dataset, ShotDataset) else 1.0
    return Unseen(_own(dataset, part), classes=getattr(dataset, "classes", ())), step


def _own(dataset: Dataset, part: str | None) -> Split:
    splits = {"test": dataset.test, "valid": dataset.valid, "train": dataset.train}
    chosen = splits[part] if part else dataset.test or dataset.valid
    if chosen is None:
        raise UserError(f"--part {part}: the run's data have no such part; there are valid and train")
    if isinstance(chosen, ShotSplit) and part == "train":
        return chosen.whole()
    return chosen


class Predictor:
    """The model of a checkpoint."""

    def __init__(self, world: World, checkpoint: Checkpoint, spec: DataSpec) -> None:
        """Build it on every rank."""
        self._world, self._config = world, checkpoint.config()
        gpu = bool(tf.config.list_physical_devices("GPU"))
        precision = world.broadcast(resolve_precision(self._config.precision, gpu, host_features()))
        self._task = build_task(self._config, spec, precision.compute_dtype)
        masters = checkpoint.masters()
        shapes = [tuple(variable.shape) for variable in self._task.variables]
        if shapes != [value.shape for value in masters.values()]:
            raise UserError(f"{checkpoint.folder}: its weights do not fit the model of its settings")
        assign_working(self._task, list(masters.values()))
        self._rows = self._config.train.eval_batch_size or self._config.train.batch_size
        self._spec = spec
        self._seed = tf.zeros(2, tf.int32)

    def predict(self, data: Unseen, run: Path, step_milliseconds: float) -> Predictions:
        """Predictions on all of `data`, the same on every rank. Collective."""
        if isinstance(data.split, ShotSplit):
            return self._shots(data.split, run, step_milliseconds)
        kind = self._config.model.kind
        if kind in ("gan", "detector", "translation") or not (self._spec.classes or self._spec.vocabulary):
            raise UserError(f"predict: not for model.kind {kind} on these data")
        if self._spec.classes:
            return self._classes(data)
        return self._text(data)

    def _windows(self, split: Split) -> Any:
        """Batches of this rank with losses [B, T] and scores."""
        rows, world = self._rows, self._world
        state = self._task.initial_state(rows)
        for batch in split.batches(0, rows * world.size, world.rank * rows, rows):
            arrays = (batch.inputs, batch.targets, batch.weight, batch.reset)
            losses, scores, state = self._forward(*map(tf.constant, arrays), state)
            yield batch, losses.numpy(), scores.numpy()

    @tf.function
    def _forward(
        self, inputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor, reset: tf.Tensor, state: State
    ) -> tuple[tf.Tensor, tf.Tensor, State]:
        before = reset_rows(state, reset)
        outputs, state = self._task.forward(inputs, before, training=False, seed=self._seed, weight=weight)
        losses = self._task.losses(outputs, targets, weight)
        text = self._spec.vocabulary and not self._spec.classes
        return losses, losses if text else self._task.scores(outputs), state

    def _shots(self, split: ShotSplit, run: Path, step: float) -> Predictions:
        parts = TraceParts()
        for batch, _, scores in self._windows(split):
            parts.add(batch, scores)
        pieces = self._world.allgather(parts.pieces)
        traces = join_traces(pieces, split.numbers, split.lengths, split.disruptive)
        traces.sort(key=lambda trace: trace.number)
        settings = split.settings
        rules = WarningRules(settings.warning_steps, settings.deadline_steps, settings.ignore_steps)
        threshold, logistic = read_choice(run)
        alarms = [alarm_of(trace, rules, step, threshold, logistic) for trace in traces]
        rows: dict[str, list[Any]] = {
            "shot": [alarm.shot for alarm in alarms],
            "steps": [len(trace.scores) for trace in traces],
            "disruptive": [alarm.disruptive for alarm in alarms],
            "maximum": [_highest(trace.scores) for trace in traces],
            "highest": [alarm.highest for alarm in alarms],
        }
        if not math.isnan(threshold):
            rows |= {
                "probability": [alarm.probability for alarm in alarms],
                "alarm": [alarm.alarm for alarm in alarms],
                "warning_ms": [alarm.warning_milliseconds for alarm in alarms],
            }
        counts = [len(trace.scores) for trace in traces]
        number = np.repeat([trace.number for trace in traces], counts)
        place = np.concatenate([np.arange(count) for count in counts])
        steps = {
            "shot": number.tolist(),
            "step": place.tolist(),
            "time_ms": (place * step).tolist(),
            "score": np.concatenate([trace.scores for trace in traces]).tolist(),
        }
        return Predictions(rows, steps, {"auc": roc(trace.maxima(rules) for trace in traces).auc})

    def _classes(self, data: Unseen) -> Predictions:
        collector = ClassCollector(self._spec.classes)
        for batch, _, scores in self._windows(data.split):
            collector.add(batch, scores)
        numbers, labels, scores = collector.gathered(self._world)
        classes = data.classes or [str(number) for number in range(self._spec.classes)]
        probability = softmax(scores)
        rows: dict[str, list[Any]] = {
            "sample": [data.names[i] for i in numbers.tolist()] if data.names else numbers.tolist(),
            "predicted": [classes[i] for i in scores.argmax(axis=1).tolist()],
            "probability": probability.max(axis=1, initial=0.0).tolist(),
        }
        if data.known:
            rows["label"] = [classes[i] for i in labels.tolist()]
        rows |= {f"p_{name}": probability[:, i].tolist() for i, name in enumerate(classes)}
        return Predictions(rows, {}, classification_metrics(labels, scores) if data.known else {})

    def _text(self, data: Unseen) -> Predictions:
        """Words by their place in the text: word k + 1 is predicted from those up to k."""
        found: dict[int, NDArray[np.float32]] = {}
        stretch = getattr(data.split, "stretch", 0)
        for batch, losses, _ in self._windows(data.split):
            begins = self._begins(batch, stretch)
            for row in np.flatnonzero(batch.weight.any(axis=1)):
                found[begins[row]] = losses[row, batch.weight[row] > 0]
        whole = dict(pair for part in self._world.allgather(found) for pair in part.items())
        loss = np.concatenate([whole[begin] for begin in sorted(whole)]).astype(np.float64)
        word = np.arange(2, len(loss) + 2)
        line = np.ones(len(loss), np.int64) if data.line_of is None else data.line_of[1 : len(loss) + 1]
        lines, first, counts = np.unique(line, return_index=True, return_counts=True)
        sums = np.add.reduceat(loss, first)
        rows = {
            "line": lines.tolist(),
            "words": counts.tolist(),
            "loss": (sums / counts).tolist(),
            "perplexity": [perplexity(value) for value in (sums / counts).tolist()],
        }
        steps = {"line": line.tolist(), "word": word.tolist(), "loss": loss.tolist()}
        mean = math.fsum(loss.tolist()) / len(loss)
        return Predictions(rows, steps, {"loss": mean, "perplexity": perplexity(mean)})

    def _begins(self, batch: Batch, stretch: int) -> list[int]:
        if batch.sequence is None or batch.position is None or not stretch:
            raise UserError("predict: the training part of a text has no order of its own; --part valid or test")
        return (batch.sequence.astype(np.int64) * stretch + batch.position).tolist()


def _highest(scores: NDArray[np.float32]) -> float:
    return float(scores.max()) if len(scores) else math.nan


def read_choice(run: Path) -> tuple[float, Logistic]:
    """Threshold and logistic curve of a run's evaluation, NaN where it has none (yet)."""
    try:
        found = json.loads((run / EVALUATION).read_text(encoding="utf-8"))
        curve = found["logistic"]
        numbers = (found["threshold"], curve["slope"], curve["intercept"])
        threshold, slope, intercept = (math.nan if number is None else float(number) for number in numbers)
    except (OSError, ValueError, KeyError, TypeError):
        return math.nan, Logistic(math.nan, math.nan)
    return threshold, Logistic(slope, intercept)
