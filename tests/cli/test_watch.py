"""`dist-mp watch` and `dist-mp report` as a user meets them, on a run that really trained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dist_mp.cli.app import run_command_line
from tests.cli.test_run import SLOW, SMALL
from tests.conftest import RunCli
from tests.experiments import made_runs as made


@pytest.mark.parametrize("command", ["watch", "report"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: dist-mp {command} [OPTIONS] [RUN]...") and "the newest in runs/" in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["watch"], "error: no run in runs: name a run folder"),
        (["watch", "missing"], "error: missing: no such run folder"),
        (["report", "."], "error: .: is no run folder, it has neither config.yaml nor metrics.jsonl"),
        (["report", "run", "-o", "no/x.html"], "error: no/x.html: cannot be written (No such file or directory)"),
        (["watch", "run", "--interval", "0"], "error: Invalid value for '--interval'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made.complete(tmp_path / "run", 4)
    assert run_command_line(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith(line) and said.err.count("\n") == 1 and said.out == ""


def test_a_run_that_trained(tmp_path: Path, run_cli: RunCli) -> None:
    """All outlets of one run of 2 ranks, then its snapshot and its report."""
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "prom").mkdir()
    words = ["watch.tensorboard=true", "watch.prometheus=prom", "watch.line_steps=1", "train.epochs=1"]
    done = run_cli(["run", "-n", "2", "small.yaml", *words], timeout=200, env=SLOW)
    assert done.rc == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    records = made.lines(folder)
    steps = [record for record in records if record["kind"] == "step"]

    start = records[0]
    assert start["kind"] == "start" and start["ranks"] == 2 and len(start["hosts"]) == 2 and start["step"] == 0
    assert abs(start["expected_steps"] - len(steps)) <= 2 and "small.yaml" in start["command"]
    assert start["software"]["dist_mp"] and start["software"]["MPI"] in start["run"]["dist_mp"]
    times = [record for record in records if record["kind"] == "ranks"]
    assert sum(record["steps"] for record in times) == len(steps)
    assert all(len(record["wait"]) == 2 and max(record["compute"]) > 0 for record in times)

    log = (folder / "logs" / "rank-000.log").read_text()
    assert len(re.findall(r"INFO dist_mp.train.progress: epoch 1/1 step \d+/\d+ loss", log)) == len(steps)
    assert "held-out auc" in log and "progress" not in (folder / "logs" / "rank-001.log").read_text()
    assert len(list((folder / "tensorboard").glob("events.out.tfevents.*"))) == 1
    metrics = (tmp_path / "prom" / f"dist_mp_{folder.name}.prom").read_text()
    assert f'dist_mp_running{{run="{folder.name}"}} 0.0\n' in metrics
    assert f'dist_mp_steps_total{{run="{folder.name}"}} {len(steps)}.0\n' in metrics

    watched = run_cli(["watch", "--once"])
    assert watched.rc == 0, watched.stderr
    found = dict(re.split(r" {2,}", line, maxsplit=1) for line in watched.stdout.splitlines())
    assert (found["state"], found["step"], found["ranks"]) == ("ended", str(len(steps)), "2")
    reported = run_cli(["report"])
    assert reported.rc == 0, reported.stderr
    page = (tmp_path / "report.html").read_text()
    assert reported.stdout.startswith("report.html (") and folder.name in page
    auc = json.loads((folder / "summary.json").read_text())["metrics"]["auc"]
    assert f"<dd>{auc:.4g}</dd>" in page and "ROC, held-out data" in page


def test_a_place_for_prometheus_that_is_not_there(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    done = run_cli(["run", "small.yaml", "watch.prometheus=nowhere/x.prom"])
    assert done.rc == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[0] == "error: watch.prometheus nowhere/x.prom: there is no folder nowhere"
    assert not (tmp_path / "runs").exists()
