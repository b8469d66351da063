"""The text format of Prometheus, replaced whole, and never the end of a run."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path

import pytest

from dist_mp.errors import UserError
from dist_mp.train.prometheus import PrometheusSink, prometheus_path
from dist_mp.train.records import StopRecord
from tests.experiments import made_runs as made

LINE = re.compile(r'dist_mp_(\w+)\{run="((?:[^"\\\n]|\\.)*)"(?:,(\w+)="((?:[^"\\\n]|\\.)*)")?\} (\S+)')


def samples(path: Path) -> dict[tuple[str, str], float]:
    """Name and further label to value, of a file in the text format."""
    found, typed, text = {}, set(), path.read_text()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("gauge", "counter") and (kind == "counter") == name.endswith("_total")
            assert name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            match = LINE.fullmatch(line)
            assert match and f"dist_mp_{match[1]}" in typed, line
            found[match[1], match[4] or ""] = float(match[5])
    return found


def test_prometheus(tmp_path: Path) -> None:
    path, name = tmp_path / "x.prom", 'a"b\\c\nd'
    sink = PrometheusSink(path, name, interval_seconds=0)
    sink.write(made.start())
    assert samples(path)["running", ""] == 1
    inodes = {path.stat().st_ino}
    for number in range(3):
        sink.write(made.step(number, applied=number != 1, loss=[1.0, math.nan, math.inf][number]))
        inodes.add(path.stat().st_ino)
    assert len(inodes) > 1 and [p.name for p in tmp_path.iterdir()] == ["x.prom"]  # replaced, nothing left beside
    assert 'run="a\\"b\\\\c\\nd"' in path.read_text()
    sink.write(made.ranks(3, [0.25, 0.5]))
    sink.write(made.epoch(0, 3, auc=0.75))
    found = samples(path)
    assert (found["steps_total", ""], found["skipped_steps_total", ""], found["loss", ""]) == (3, 1, math.inf)
    assert (found["rank_compute_seconds", "1"], found["held_out", "auc"]) == (0.5, 0.75)
    sink.write(made.summary(3))
    assert samples(path)["running", ""] == 0
    again = PrometheusSink(path, name)
    again.write(made.start(step=3))
    again.write(StopRecord(signal="SIGTERM"))
    assert samples(path)["running", ""] == 0


def test_prometheus_is_not_written_at_every_step(tmp_path: Path) -> None:
    sink = PrometheusSink(tmp_path / "x.prom", "run", interval_seconds=1000)
    sink.write(made.start())
    sink.write(made.step(7))
    assert ("steps_total", "") not in samples(tmp_path / "x.prom")
    sink.close()
    assert samples(tmp_path / "x.prom")["steps_total", ""] == 8


def test_prometheus_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    sink = PrometheusSink(folder / "x.prom", "run", interval_seconds=0)
    with caplog.at_level(logging.WARNING, "dist_mp.train.prometheus"):
        monkeypatch.setattr(logging.getLogger("dist_mp"), "propagate", True)
        sink.write(made.start())
        sink.write(made.step(0))
    assert len(caplog.records) == 1 and "the run goes on without it" in caplog.text
    folder.mkdir()
    sink.write(made.step(1))
    assert samples(folder / "x.prom")["steps_total", ""] == 2


@pytest.mark.parametrize("setting", ["x.txt", "missing/x.prom", "missing/"])
def test_prometheus_paths_that_are_wrong(setting: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^watch\.prometheus "):
        prometheus_path(str(tmp_path / setting), "run")
    assert prometheus_path(str(tmp_path), "run-1") == tmp_path / "dist_mp_run-1.prom"
