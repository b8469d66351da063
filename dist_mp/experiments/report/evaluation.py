"""What the evaluation at the end of a run says: ROC curves, warning times, calibration, alarms, classes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_mp.experiments.report.chart import Chart, draw
from dist_mp.experiments.report.run import Run
from dist_mp.experiments.report.series import Series, thin
from dist_mp.experiments.report.tables import Cell, Table, run_cell, value_cell
from dist_mp.experiments.run_reader import number

FILE = "evaluation.json"
SPLIT_NAMES = {"valid": "held-out data", "test": "test data"}
DEADLINE_COUNTS = ("early", "correct", "late", "missed", "false_alarms", "clean")


@dataclass(frozen=True)
class Evaluated:
    """One split as a run's evaluation has it."""

    run: Run
    split: str
    values: Mapping[str, Any]

    def part(self, *names: str) -> Mapping[str, Any]:
        """A section within the split; empty where it is missing."""
        found: Any = self.values
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def curve(self, x: str, y: str, *names: str, factor: float = 1.0) -> Series:
        """Two lists of a section as a curve; none where it is missing."""
        section = self.part(*names)
        xs, ys = ([number(v) for v in section.get(name) or ()] for name in (x, y))
        length = min(len(xs), len(ys))
        return thin(self.run.number, self.run.label, [factor * v for v in xs[:length]], ys[:length])


def read_evaluations(runs: Sequence[Run]) -> list[Evaluated]:
    """All splits of all runs that have an evaluation; what cannot be read is passed over."""
    found = []
    for run in runs:
        splits = _splits(run.data.folder / FILE)
        found += [Evaluated(run, str(name), split) for name, split in splits.items() if isinstance(split, Mapping)]
    return found


def _splits(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    splits = document.get("splits") if isinstance(document, Mapping) else None
    return splits if isinstance(splits, Mapping) else {}


def evaluation_charts(evaluated: Sequence[Evaluated]) -> list[Chart]:
    """ROC, warning times and calibration, a chart for each split."""
    charts: list[Chart | None] = []
    for index, split in enumerate(dict.fromkeys(e.split for e in evaluated)):
        mine = [e for e in evaluated if e.split == split]
        where = SPLIT_NAMES.get(split, split)
        charts += [
            draw(
                f"roc-{index}",
                f"ROC, {where}",
                "share of positives found, by share of negatives that raise a false alarm",
                [e.curve("false_positive_rate", "true_positive_rate", "roc") for e in mine],
                x_label="false positive rate",
                square=True,
            ),
            draw(
                f"warning-{index}",
                f"Warning time, {where}",
                "share of the disruptive shots that are known so long before their end",
                [e.curve("milliseconds", "detected", "warning_curve") for e in mine],
                x_label="ms before the disruption",
                x_zero=True,
                zero=True,
            ),
            draw(
                f"calibration-{index}",
                f"Calibration, {where}",
                "share that came true, by predicted probability; on the dotted line they agree",
                [e.curve("predicted", "observed", "calibration") for e in mine],
                x_label="predicted probability",
                square=True,
            ),
        ]
    return [chart for chart in charts if chart is not None]


def evaluation_tables(evaluated: Sequence[Evaluated]) -> list[Table]:
    """Alarms by deadline, and what classes came to."""
    return [table for table in (_deadlines(evaluated), _classes(evaluated)) if table.rows]


def _deadlines(evaluated: Sequence[Evaluated]) -> Table:
    rows = []
    for e in evaluated:
        listed = e.values.get("deadlines")
        deadlines = [d for d in listed if isinstance(d, Mapping)] if isinstance(listed, list) else []
        for deadline in sorted(deadlines, key=_milliseconds):
            shares = [100 * number(deadline.get(name)) for name in ("detected", "false_positive_rate")]
            rows.append(
                [
                    run_cell(e.run),
                    Cell(e.split),
                    value_cell(number(deadline.get("milliseconds"))),
                    value_cell(number(deadline.get("auc"))),
                    *(value_cell(share, None if math.isnan(share) else f"{share:.1f}") for share in shares),
                    *(value_cell(number(deadline.get(name))) for name in DEADLINE_COUNTS),
                ]
            )
    columns = ["run", "split", "T_min ms", "AUC", "detected %", "false alarms %", "early", "correct", "late", "missed"]
    columns += ["false alarms", "clean shots"]
    return Table(
        "Alarms, where one must come at least T_min before the disruption", columns, rows, frozenset(range(2, 12))
    )


def _milliseconds(deadline: Mapping[str, Any]) -> float:
    value = number(deadline.get("milliseconds"))
    return value if math.isfinite(value) else math.inf


def _classes(evaluated: Sequence[Evaluated]) -> Table:
    rows = []
    for e in evaluated:
        if "accuracy" in e.values:
            means = []
            for name in ("f1", "auc"):
                listed = e.values.get(name)
                finite = [v for v in map(number, listed if isinstance(listed, list) else []) if math.isfinite(v)]
                means.append(sum(finite) / len(finite) if finite else math.nan)
            error = number(e.part("calibration").get("expected_error"))
            values = [number(e.values.get("samples")), number(e.values.get("accuracy")), *means, error]
            rows.append([run_cell(e.run), Cell(e.split), *map(value_cell, values)])
    columns = ["run", "split", "samples", "accuracy", "F1, mean", "AUC, mean", "calibration error"]
    return Table("Classes", columns, rows, frozenset(range(2, 7)))
