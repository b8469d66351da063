"""TensorBoard's own reader finds what was written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dist_mp.train.records import RecordWriter
from tests.experiments import made_runs as made


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_steps_epochs_and_restarts(tmp_path: Path) -> None:
    from dist_mp.train.tensorboard import TensorBoardSink

    folder = tmp_path / "tensorboard"
    with RecordWriter(tmp_path / "m.jsonl", [TensorBoardSink(folder)]) as writer:
        for record in [made.start(), *map(made.step, range(10)), made.epoch(0, 10), made.ranks(10, [0.1, 0.3])]:
            writer.write(record)
    found = scalars(folder)
    assert found["train/loss"] == [(n, pytest.approx(made.step(n).loss)) for n in range(10)]
    assert found["held_out/auc"] == [(9, pytest.approx(made.epoch(0, 10).metrics["auc"]))]
    assert found["speed/slowest_rank_compute_seconds"] == [(10, pytest.approx(0.3))]
    # It goes on after step 6; TensorBoard forgets what was done again. NaN is left out.
    with RecordWriter(tmp_path / "m.jsonl", [TensorBoardSink(folder)]) as writer:
        writer.write(made.start(step=6, time=made.BEGIN + 100))
        writer.write(made.step(6, time=made.BEGIN + 101, loss=5.0, gradient_norm=math.nan))
    found = scalars(folder)
    assert [step for step, _ in found["train/loss"]] == list(range(7))
    assert found["train/loss"][6] == (6, 5.0) and [step for step, _ in found["train/gradient_norm"]] == list(range(6))
