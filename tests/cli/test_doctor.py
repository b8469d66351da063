"""``dist-mp doctor`` alone and under mpirun; the verdicts are tested in tests/doctor."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from dist_mp.doctor.examination import examine
from dist_mp.launch.mpirun import Mpirun, find_mpirun, job_command, this_machine
from tests.conftest import RunCli
from tests.harness.runner import ROOT

TOPICS = {
    *("versions", "MPI library", "mpirun", "MPI threads", "launcher", "cores", "processor", "memory", "GPUs"),
    *("network", "link within a node", "TensorFlow", "GPU memory in MPI", "scheduler"),
}


def test_alone_and_as_ranks_of_a_job(run_cli: RunCli) -> None:
    alone = run_cli(["doctor", "-n", "3", "--json"], timeout=120)
    command = job_command(find_mpirun(), 2, [sys.executable, "-m", "dist_mp", "doctor"], machine=this_machine())
    inside = run_cli(["--json"], program=command.argv, timeout=120, env=command.environment)
    for done, ranks in ((alone, 3), (inside, 2)):
        assert done.rc == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert {one["topic"] for one in found["findings"]} == TOPICS
        assert found["problems"] == 0 and [one["rank"] for one in found["ranks"]] == list(range(ranks))
        texts = {one["topic"]: one["text"] for one in found["findings"]}
        assert f"{ranks} ranks on " in texts["launcher"]
        assert str(find_mpirun()) == texts["mpirun"] and find_mpirun().vendor in texts["MPI library"]
        assert "CPU:0" in texts["TensorFlow"]


def test_a_problem_is_status_1(tmp_path: Path, run_cli: RunCli) -> None:
    """A TensorFlow that cannot be imported, found in a process of its own."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tensorflow.py").write_text("raise ImportError('no such instruction')\n")
    path = os.pathsep.join([str(tmp_path / "broken"), str(ROOT)])
    done = run_cli(["doctor", "-n", "1"], timeout=120, env={"PYTHONPATH": path})
    assert done.rc == 1, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("TensorFlow")]
    assert "no such instruction" in row and row.endswith("problem")
    assert "1 problem, " in done.stdout.splitlines()[-1]


def test_misuse(run_cli: RunCli) -> None:
    done = run_cli(["doctor", "-n", "2"], env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    assert done.rc == 2 and done.stderr.startswith("error: doctor: --ranks")
    assert run_cli(["doctor", "--hostfile", "nowhere"]).rc == 2


def test_ranks_that_do_not_start_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dist_mp.doctor.examination.find_mpirun", lambda: Mpirun("/bin/false", "Open MPI", "5.0.11"))
    problems = [one for one in examine(2).findings if one.verdict == "problem"]
    assert [one.topic for one in problems] == ["ranks"] and "ended with status 1" in problems[0].text
