"""Plain lines where there is no terminal, and in the log in any case."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from dist_mp.config import WatchConfig
from dist_mp.train.progress import ProgressDisplay
from tests.experiments import made_runs as made


def test_progress_in_plain_lines_and_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("dist_mp"), "propagate", True)
    for terminal in (False, True):
        caplog.clear()
        console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
        watch = WatchConfig(line_seconds=1000, line_steps=4)
        with caplog.at_level(logging.INFO, "dist_mp"), ProgressDisplay(console, 2, watch) as display:
            display.begin_epoch(0, 10)
            for number in range(10):
                display.step(made.step(number, loss_scale=2.0**number), number)
            display.epoch(made.epoch(0, 10))
        logged = [record.getMessage() for record in caplog.records]
        assert [line.split(" loss")[0] for line in logged[:2]] == ["epoch 1/2 step 4/10", "epoch 1/2 step 8/10"]
        assert "scale 8 320 samples/s  compute 70% exchange 15% wait 10% input 5%" in logged[0]
        assert len(logged) == 3 and logged[2].startswith("epoch 1/2: train loss")
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("epoch 1/2 step 4/10 loss" in text) == (not terminal)
        assert "held out" in text


def test_a_line_after_so_many_seconds(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("dist_mp"), "propagate", True)
    console = Console(file=io.StringIO())
    with caplog.at_level(logging.INFO, "dist_mp"), ProgressDisplay(console, 1, WatchConfig(line_seconds=1e-9)) as all_:
        for number in range(3):
            all_.step(made.step(number), number)
    assert len(caplog.records) == 3
