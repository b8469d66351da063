"""The evaluation at the end of a run: held-out and test data, into `evaluation.json` and the summary."""

from __future__ import annotations

import os
from pathlib import Path

from dist_mp.comm.world import World
from dist_mp.config import EvaluationConfig
from dist_mp.data.shots import ShotDataset
from dist_mp.train.classification import class_evaluation
from dist_mp.train.evaluate import ClassCollector, Evaluator, PerplexityCollector, ShotCollector, perplexity
from dist_mp.train.evaluation_records import (
    ClassEvaluation,
    Evaluation,
    LogisticCurve,
    MetricsEvaluation,
    ShotEvaluation,
    TextEvaluation,
)
from dist_mp.train.parts import Parts
from dist_mp.train.records import SummaryRecord
from dist_mp.train.shot_report import Chosen, choose, shot_evaluation

FILE = "evaluation.json"

SplitEvaluation = ShotEvaluation | ClassEvaluation | TextEvaluation | MetricsEvaluation


def finish(parts: Parts, folder: Path, summary: SummaryRecord) -> SummaryRecord:
    """Evaluate with the final weights, write `evaluation.json`, and add to the summary. Collective."""
    evaluation, numbers = final_evaluation(parts, summary.weights)
    if parts.world.rank == 0:
        partial = folder / f"{FILE}.partial"
        partial.write_text(evaluation.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(partial, folder / FILE)
    return summary.model_copy(update={"metrics": summary.metrics | numbers})


def final_evaluation(parts: Parts, weights: str) -> tuple[Evaluation, dict[str, float]]:
    """The evaluation, the same on every rank, and its main numbers. Collective.

    Held-out data are not run again where they were run last: most runs end with that. What is chosen (a threshold, a
    logistic curve) is chosen on them, and then used on the test data too.
    """
    report = Reporter(parts)
    if parts.evaluator.evaluated is not parts.dataset.valid:
        parts.evaluator.run(parts.dataset.valid)
    valid = report.of_last_run()
    splits, numbers = {"valid": valid}, main_numbers(valid)
    if parts.dataset.test is not None and parts.config.evaluation.test:
        metrics = parts.evaluator.run(parts.dataset.test)
        splits["test"] = test = report.of_last_run()
        numbers |= {f"test_{name}": value for name, value in (metrics | main_numbers(test)).items()}
    chosen = report.chosen
    if chosen is not None:
        numbers["threshold"] = chosen.threshold
    return Evaluation(
        weights=weights,
        threshold=None if chosen is None else chosen.threshold,
        threshold_rule="" if chosen is None else rule_text(parts.config.evaluation),
        logistic=None
        if chosen is None
        else LogisticCurve(slope=chosen.logistic.slope, intercept=chosen.logistic.intercept),
        splits=splits,
    ), numbers


def rule_text(settings: EvaluationConfig) -> str:
    """How the threshold is chosen, in words."""
    if settings.threshold == "youden":
        return "largest detected share less false alarm share"
    return f"most detections with false alarms in at most {settings.false_alarm_share:g} of the clean shots"


class Reporter:
    """Turns what the evaluator collected in its last run into a record."""

    def __init__(self, parts: Parts) -> None:
        """Choose nothing yet: the first split of shots does."""
        self._world: World = parts.world
        self._evaluator: Evaluator = parts.evaluator
        self._settings = parts.config.evaluation
        self._probabilities = getattr(parts.config.model, "target", "") == "binary"
        dataset = parts.dataset
        self._step_milliseconds = dataset.source.step_milliseconds if isinstance(dataset, ShotDataset) else 1.0
        self.chosen: Chosen | None = None

    def of_last_run(self) -> SplitEvaluation:
        """The record, the same on every rank. Collective."""
        evaluator, collector, loss = self._evaluator, self._evaluator.collector, self._evaluator.loss
        if isinstance(collector, ShotCollector):
            traces, rules = collector.traces(self._world), collector.rules
            if self.chosen is None:
                self.chosen = choose(traces, rules, self._settings)
            return shot_evaluation(
                traces, rules, self._settings, self._step_milliseconds, self.chosen, loss, self._probabilities
            )
        if isinstance(collector, ClassCollector):
            _, labels, scores = collector.gathered(self._world)
            return class_evaluation(labels, scores, loss, self._settings.calibration_bins)
        if isinstance(collector, PerplexityCollector):
            return TextEvaluation(loss=loss, words=round(evaluator.weight), perplexity=perplexity(loss))
        return MetricsEvaluation(loss=loss, weight=evaluator.weight, metrics=evaluator.metrics)


def main_numbers(evaluation: SplitEvaluation) -> dict[str, float]:
    """What belongs into the summary beside loss and metrics."""
    if not isinstance(evaluation, ShotEvaluation):
        return {}
    counts = evaluation.deadlines[0]
    return {
        "detected": counts.detected,
        "false_alarms": counts.false_positive_rate,
        "warning_ms": evaluation.median_warning_milliseconds,
    }
