"""dist-mp bench data: what it measures and shows. Speed is not asserted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from dist_mp.config import CampaignData, Config, TrainConfig
from dist_mp.errors import UserError
from dist_mp.experiments.bench_data import Alone, Bench, Row, input_share, measure_alone, print_table, run_bench

SMALL = """
name: small
data: {shots: 16, min_steps: 30, max_steps: 60, profile_points: 24, length: 16, warning_steps: 20}
model: {layers: 1, units: 8, filters: 4, profile_dense: 8}
train: {batch_size: 4}
"""


def test_shares_are_weighted_and_leave_compilation_out() -> None:
    records = [{"seconds": 1.0, "share_input": 0.1}, {"seconds": 3.0, "share_input": 0.3}]
    records += [{"seconds": 1.0, "share_input": 0.0}, {"seconds": 50.0, "share_input": 0.9}]
    middle, share, steps = input_share(records)
    assert (middle, steps) == (2.0, 3)
    assert share == pytest.approx((0.1 + 0.9) / 5.0)


def test_batches_alone() -> None:
    data = CampaignData(shots=16, min_steps=30, max_steps=60, profile_points=4, length=16, warning_steps=20)
    described, alone = measure_alone(Config(data=data, train=TrainConfig(batch_size=3)), ranks=2, batches=40)
    assert "campaign: 12 training" in described
    # [B, T, F] inputs with 14 scalars and 2 profiles of 4 points, targets and weights, float32.
    assert alone.batch_bytes == 4 * 3 * 16 * (14 + 8 + 1 + 1)
    assert 0 < alone.batch_seconds <= alone.slowest_seconds
    assert alone.open_seconds > 0 and alone.memory_bytes >= 0


def test_the_table_names_what_is_too_slow() -> None:
    alone = Alone(0.5, 0.001, 0.002, 1 << 20, 3 << 20)
    rows = [Row("quick", "data", alone, 0.1, 0.001, 9), Row("slow", "data", alone, 0.1, 0.25, 9)]
    with open(os.devnull, "w") as sink:
        console = Console(width=140, record=True, file=sink)
        print_table(console, rows, 2)
    text = console.export_text()
    assert "0.10%" in text and "25.00% (too much)" in text and "1.00 ms" in text and "3 MiB" in text
    assert text.count("too much") == 1


def test_a_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    out = tmp_path / "bench.json"
    (row,) = run_bench(Bench((str(config),), ("train.batch_size=2",), ranks=2, steps=6, batches=5, out=out))
    assert row.steps >= 1 and 0.0 <= row.share_input < 1.0 and row.step_seconds > 0
    assert "small.yaml" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"][0]["share_input"] == row.share_input

    with pytest.raises(UserError, match=r"small.yaml: the run ended with status 2: error: .*global_batch"):
        run_bench(Bench((str(config),), ("train.global_batch=3",), batches=1))
