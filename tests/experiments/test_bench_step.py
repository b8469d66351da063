"""The benchmark of a training step: what it makes of samples, and a small real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_mp.experiments.bench_step import make_row
from tests.conftest import RunCli


def test_medians_over_all_rounds_and_the_hidden_share() -> None:
    rounds = [
        {"without": [1.0, 9.0], "with_exchange": [2.0, 1.5], "exchange": [0.8, 0.8], "sent_bytes": 7.0},
        {"without": [1.0], "with_exchange": [1.2], "exchange": [1.0], "sent_bytes": 7.0},
    ]
    row = make_row("ours", "fp32", rounds)
    assert (row.without, row.with_exchange, row.exchange, row.ratio) == (1.0, 1.5, 0.8, 1.5)
    assert row.hidden == pytest.approx(1.0 - 0.5 / 0.8)
    peer = make_row("peer", "fp32", [{"without": [2.0], "with_exchange": [3.0]}])
    assert (peer.ratio, peer.exchange, peer.hidden) == (1.5, None, None)


def test_a_small_run(tmp_path: Path, run_cli: RunCli) -> None:
    sizes = ["--rows", "2", "--units", "8", "--vocabulary", "40", "--length", "4", "--steps", "2", "--rounds", "1"]
    done = run_cli(["bench", "step", *sizes, "--precisions", "bf16", "--out", "step.json"], timeout=100)
    assert done.rc == 0, done.stderr
    (row,) = json.loads((tmp_path / "step.json").read_text())["rows"]
    assert row["system"] == "dist_mp" and row["with_exchange"] > 0 < row["without"]
    assert f"{row['ratio']:.3f}" in done.stdout
