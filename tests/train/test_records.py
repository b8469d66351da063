"""Records are whole JSON lines, and docs/metrics.md describes every field of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dist_mp.train.evaluation_records import (
    CalibrationBins,
    ClassEvaluation,
    DeadlineCounts,
    Evaluation,
    LogisticCurve,
    MetricsEvaluation,
    RocPoints,
    ShotAlarm,
    ShotEvaluation,
    TextEvaluation,
    WarningPoints,
)
from dist_mp.train.records import (
    CheckRecord,
    EpochRecord,
    RanksRecord,
    Record,
    RecordWriter,
    StartRecord,
    StepRecord,
    StopRecord,
    SummaryRecord,
)
from tests.experiments import made_runs as made

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_lines_are_json_without_nan(tmp_path: Path) -> None:
    record = EpochRecord(
        epoch=1, steps=2, train_loss=math.nan, seconds=1.5, evaluation_seconds=math.inf, metrics={"auc": math.nan}
    )
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):  # a second writer appends
        with RecordWriter(path) as writer:
            writer.write(record)
    lines = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    assert lines[0]["kind"] == "epoch"
    assert lines[0]["train_loss"] is None
    assert lines[0]["metrics"] == {"auc": None}


def test_other_ranks_write_nothing() -> None:
    with RecordWriter(None) as writer:
        writer.write(CheckRecord(step=1, weights="00"))


@pytest.mark.parametrize(
    "record",
    [
        Evaluation,
        ShotEvaluation,
        ClassEvaluation,
        TextEvaluation,
        MetricsEvaluation,
        DeadlineCounts,
        ShotAlarm,
        RocPoints,
        WarningPoints,
        CalibrationBins,
        LogisticCurve,
    ],
)
def test_document_describes_the_evaluation(record: type[Record]) -> None:
    text = DOCUMENT.read_text().split("## evaluation.json\n")[1]
    assert record.__doc__ is not None
    section = text.split(f"\n{record.__doc__.splitlines()[0]}\n")[1].split("\n### ")[0]
    for name, field in record.model_fields.items():
        assert f"| `{name}` | {field.description or f'`{field.default}`'} |" in section


@pytest.mark.parametrize(
    "record", [StartRecord, StepRecord, RanksRecord, EpochRecord, StopRecord, CheckRecord, SummaryRecord]
)
def test_document_describes_every_field(record: type[Record]) -> None:
    section = DOCUMENT.read_text().split(f"## {record.model_fields['kind'].default}\n")[1].split("\n## ")[0]
    for name, field in record.model_fields.items():
        if name != "kind":
            assert f"| `{name}` | {field.description} |" in section


def test_sinks_get_what_the_file_gets(tmp_path: Path) -> None:
    class Sink:
        def __init__(self) -> None:
            self.seen: list[Record] = []
            self.closed = False

        def write(self, record: Record) -> None:
            self.seen.append(record)

        def close(self) -> None:
            self.closed = True

    sink = Sink()
    with RecordWriter(tmp_path / "m.jsonl", [sink]) as writer:
        writer.write(made.step(1))
    assert sink.seen == [made.step(1)] and sink.closed
