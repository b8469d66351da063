"""``dist-mp predict`` as a user types it: on the run's own data and on others, alone and on 3 ranks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet
import pytest

from dist_mp.cli.predict import _without_ranks
from tests.cli.test_run import SLOW, SMALL, run_folder
from tests.conftest import RunCli


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_of_a_run(tmp_path: Path, run_cli: RunCli) -> None:
    """Held-out shots of the run, alone and on 3 ranks, as in evaluation.json; then other shots."""
    (tmp_path / "small.yaml").write_text(SMALL.replace("profile_points: 24", "profile_points: 64"))
    done = run_cli(["run", "-n", "2", "small.yaml", "train.epochs=1"], timeout=120, env=SLOW)
    assert done.rc == 0, done.stderr
    run = run_folder(tmp_path)
    done = run_cli(["predict", str(run), "-o", "own.csv", "--steps", "steps.parquet"], timeout=120, env=SLOW)
    assert done.rc == 0, done.stderr
    evaluation = json.loads((run / "evaluation.json").read_text())["splits"]["valid"]
    rows = read(tmp_path / "own.csv")
    assert len(rows) == 6 and f"auc {evaluation['auc']:.4f}" in done.stderr
    for row, shot in zip(rows, evaluation["shots"], strict=True):
        assert (int(row["shot"]), row["alarm"], bool(int(row["disruptive"]))) == (
            shot["shot"],
            shot["alarm"],
            shot["disruptive"],
        )
        assert float(row["highest"]) == shot["highest"] and float(row["probability"]) == shot["probability"]
        assert row["warning_ms"] == ("" if shot["warning_milliseconds"] is None else str(shot["warning_milliseconds"]))
    steps = pyarrow.parquet.read_table(tmp_path / "steps.parquet").to_pydict()
    for row in rows:
        scores = [s for shot, s in zip(steps["shot"], steps["score"], strict=True) if shot == int(row["shot"])]
        assert len(scores) == int(row["steps"]) and max(scores) == float(row["maximum"])
    assert steps["time_ms"][:3] == [0.0, 10.0, 20.0]

    done = run_cli(["predict", "-n", "3", str(run), "-o", "own.csv"], env=SLOW)
    assert done.rc == 2
    assert "own.csv: exists already; name another file, or write over it with --force" in done.stderr
    alone = (tmp_path / "own.csv").read_bytes()
    done = run_cli(["predict", "-n", "3", str(run), "-o", "own.csv", "--force"], timeout=150, env=SLOW)
    assert done.rc == 0, done.stderr
    assert (tmp_path / "own.csv").read_bytes() == alone

    # Other shots, from files, on standard output; what is said of them goes to standard error.
    assert run_cli(["data", "fetch", "campaign", "--folder", "raw", "--shots", "8", "--seed", "3"]).rc == 0
    assert run_cli(["data", "prepare", "raw", "shots"]).rc == 0
    done = run_cli(["predict", str(run), "shots", "--scale", "own"], timeout=120, env=SLOW)
    assert done.rc == 0, done.stderr
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [int(row["shot"]) for row in found] == list(range(8))
    assert "8 shots, weights after step" in done.stderr


def test_command_line_without_ranks() -> None:
    words = ["predict", "-n", "3", "run", "-n4", "--ranks=5", "--ranks", "2", "-o", "n.csv", "--part", "test"]
    assert _without_ranks(words) == ["predict", "run", "-o", "n.csv", "--part", "test"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such run folder"),
        (["."], ".: holds no checkpoint"),
        (["nowhere", "-o", "a.xlsx"], "a.xlsx: ends in .xlsx; a table is a .csv or a .parquet file"),
        (["nowhere", "-o", "no/a.csv"], "no/a.csv: there is no folder no"),
        (["nowhere", "-o", "a.csv", "--steps", "a.csv"], "a.csv: is named twice"),
        (["nowhere", "--part", "tset"], "Invalid value for '--part'"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, run_cli: RunCli) -> None:
    done = run_cli(["predict", *arguments])
    assert done.rc == 2
    assert message in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
