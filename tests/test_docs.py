"""The examples of docs/python.md run as they are written, alone and on 2 ranks."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine
from tests.conftest import RunCli

DOCS = Path(__file__).resolve().parents[1] / "docs"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), re.DOTALL)


def run(example: str, ranks: int, tmp_path: Path, run_cli: RunCli) -> list[str]:
    (tmp_path / "program.py").write_text(example)
    command = job_command(find_mpirun(), ranks, [sys.executable, "program.py"], machine=this_machine())
    environment = command.environment | {"OMPI_MCA_mpi_yield_when_idle": "1"}
    done = run_cli([], program=command.argv, timeout=150, env=environment)
    assert done.rc == 0, done.stderr
    return done.stdout.splitlines()


def test_there_are_two_examples_of_about_20_lines() -> None:
    assert len(examples()) == 2
    for example in examples():
        lines = [line for line in example.splitlines() if line.strip() and not line.startswith(("import", "from"))]
        assert len(lines) <= 25


@pytest.mark.parametrize("ranks", [1, 2])
def test_fit_learns(ranks: int, tmp_path: Path, run_cli: RunCli) -> None:
    lines = run(examples()[0], ranks, tmp_path, run_cli)
    curves = [ast.literal_eval(line) for line in lines if line.startswith("[")]
    assert len(curves) == ranks and all(curve == curves[0] for curve in curves)
    assert curves[0][-1] < 0.9 * curves[0][0]


def test_own_loop_learns(tmp_path: Path, run_cli: RunCli) -> None:
    lines = run(examples()[1], 2, tmp_path, run_cli)
    losses = {int(rank): float(loss) for rank, loss in map(str.split, lines)}
    assert set(losses) == {0, 1} and losses[0] != losses[1]
    assert max(losses.values()) < 2.0  # 4 at the start: the variance of the target
