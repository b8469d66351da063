"""Whole jobs as a user starts them: through dist-mp run, by mpirun itself, and alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine
from tests.conftest import RunCli

SMALL = """
name: small
precision: fp16
data: {kind: campaign, shots: 24, min_steps: 40, max_steps: 90, profile_points: 24, length: 16, warning_steps: 20,
       deadline_steps: 3, ignore_steps: 2}
model: {kind: disruption, layers: 1, units: 8, filters: 4, profile_dense: 8}
optimizer: {name: adam, clip_norm: 1.0}
train: {batch_size: 4, epochs: 2, check_weights_every: 1}
"""
SLOW = {"OMPI_MCA_mpi_yield_when_idle": "1"}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def run_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_run_on_2_ranks(small: Path, tmp_path: Path, run_cli: RunCli) -> None:
    done = run_cli(["run", "-n", "2", "small.yaml", "train.epochs=2", "--timeline"], timeout=100, env=SLOW)
    assert done.rc == 0, done.stderr
    assert done.stdout == ""
    folder = run_folder(tmp_path)
    for fact in ("2 on 1 node, 1 compute thread each", "fp16, FP32 masters", "8 = 4 x 2 ranks x 1", "held-out auc"):
        assert fact in done.stderr
    assert re.search(rf"^run folder +{folder.relative_to(tmp_path)}$", done.stderr, re.MULTILINE)
    for noise in ("oneDNN", "absl", "ucx", "MPI_ABORT", "Traceback"):
        assert noise not in done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    steps = [r for r in records(folder) if r["kind"] == "step"]
    assert summary["applied_steps"] + summary["skipped_steps"] == len(steps)
    assert all(len(r["rank_compute_seconds"]) == 2 for r in steps)
    assert 0.0 <= summary["metrics"]["auc"] <= 1.0
    # Of n numbers of 2 bytes a rank hands on all but its own piece, and its own piece of the mean; and some padding.
    assert 1.0 <= summary["sent_bytes_per_step"] / (2 * summary["gradient_numbers"]) < 1.3
    assert {p.name for p in (folder / "logs").iterdir()} == {"rank-000.log", "rank-001.log"}
    check_timeline(folder / "timeline", len(steps))
    assert "small.yaml" in {p.name for p in tmp_path.iterdir()}


def check_timeline(folder: Path, steps: int) -> None:
    """Each rank has every phase of every step, and they follow each other."""
    for rank in range(2):
        events = json.loads((folder / f"rank-{rank:04d}.json").read_text())["traceEvents"]
        ends = {}
        for name in ("forward", "backward", "encode", "wait", "reduce", "decode", "update"):
            of_name = [e for e in events if e["name"] == name]
            assert len(of_name) >= steps and all(e["dur"] >= 0 and e["pid"] == rank for e in of_name), name
            ends[name] = of_name[-1]["ts"] + of_name[-1]["dur"]
        order = ["forward", "backward", "encode", "decode", "update"]
        assert [ends[name] for name in order] == sorted(ends[name] for name in order)


def test_mpirun_and_srun_start_ranks_themselves(small: Path, tmp_path: Path, run_cli: RunCli) -> None:
    """``mpirun -np 4 python -m dist_mp train``, with nothing but what a cluster's user types."""
    program = [sys.executable, "-m", "dist_mp", "train"]
    command = job_command(find_mpirun(), 4, program, machine=this_machine(), environ={})
    arguments = ["small.yaml", "train.batch_size=2", "train.max_steps=3", "exchange.algorithm=pieces"]
    plain = {k: v for k, v in command.environment.items() if k.startswith("OMPI_")}
    words = [w for w in command.argv if not w.startswith("-x")]
    names = {v for v in command.environment if not v.startswith("OMPI_")}
    done = run_cli([*(w for w in words if w not in names), *arguments], program=[], timeout=120, env=plain | SLOW)
    assert done.rc == 0, done.stderr
    assert "4 on 1 node, 1 compute thread each" in done.stderr
    summary = json.loads((run_folder(tmp_path) / "summary.json").read_text())
    assert summary["applied_steps"] + summary["skipped_steps"] == 3


def test_alone_without_mpirun(small: Path, tmp_path: Path, run_cli: RunCli) -> None:
    done = run_cli(["train", "small.yaml", "train.max_steps=2"], timeout=60, env={"PATH": "/usr/bin:/bin"})
    assert done.rc == 0, done.stderr
    assert "1 on 1 node" in done.stderr
    assert json.loads((run_folder(tmp_path) / "summary.json").read_text())["sent_bytes_per_step"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.batch_size=2", "train.global_batch=5"], "error: train.global_batch: is 5, but "),
        (["run_folder=small.yaml"], "error: run_folder small.yaml: cannot write there "),
        (["data.kind=text", "model.kind=language", "data.path=nowhere"], "error: data.path: no folder 'nowhere'; "),
    ],
    ids=["batch", "folder", "data"],
)
def test_a_mistake_of_all_ranks_is_one_line(
    settings: list[str], message: str, small: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    done = run_cli(["run", "-n", "2", "small.yaml", *settings], timeout=60, env=SLOW)
    assert done.rc == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("dist-mp: running as root")]
    assert len(said) == 1 and said[0].startswith(message), done.stderr
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_run_inside_a_job_is_refused(small: Path, run_cli: RunCli) -> None:
    done = run_cli(["run", "small.yaml"], env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    assert done.rc == 2
    assert "already a rank of an MPI job" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "nowhere"], "error: --resume nowhere: is not a run folder: it has no config.yaml\n"),
        (["--resume", "a", "--into", "b", "small.yaml"], "error: --resume and --into: give one of them\n"),
        (["train.epochs=3"], "error: no configuration: name a YAML file or a bundled one (dist-mp config list)\n"),
    ],
    ids=["nowhere", "both", "none"],
)
def test_what_to_continue(arguments: list[str], message: str, small: Path, run_cli: RunCli) -> None:
    done = run_cli(["run", "-n", "2", *arguments])
    assert (done.rc, done.stderr) == (2, message)


@pytest.mark.timeout(600)
def test_the_quickstart_solves_its_problem(tmp_path: Path, run_cli: RunCli) -> None:
    """Two LSTM layers go above an AUC of 0.93, where a logistic regression on last values stays below 0.85."""
    done = run_cli(["run", "-n", "2", "quickstart"], timeout=560, env=SLOW)
    assert done.rc == 0, done.stderr
    evaluation = json.loads((run_folder(tmp_path) / "evaluation.json").read_text())["splits"]["valid"]
    assert evaluation["disruptive"] + evaluation["clean"] == 80
    assert evaluation["auc"] > 0.93
    assert [counts["milliseconds"] for counts in evaluation["deadlines"]] == [100, 30, 70, 200, 500, 1000]
    assert evaluation["deadlines"][0]["detected"] > 0.85 > 0.2 > evaluation["deadlines"][0]["false_positive_rate"]
