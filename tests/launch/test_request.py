"""What a job may ask for: times, sweeps, and texts that a script can carry."""

from __future__ import annotations

from typing import Any

import pytest

from dist_mp.errors import UserError
from dist_mp.launch.request import JobRequest, clock, parse_time, slurm_time, sweep


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("2:00:05", 7205), ("1-2", 93600), ("1-02:30", 95400), ("3-00:00:01", 259201)],
)
def test_time(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds
    assert parse_time(slurm_time(seconds)) == seconds
    assert parse_time(clock(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0", "0:00", "1h", "-5", "1:2:3:4", "1-", "inf"])
def test_time_that_is_none(text: str) -> None:
    with pytest.raises(UserError, match="--time"):
        parse_time(text)


def test_sweep_is_every_combination() -> None:
    assert sweep([]) == []
    assert sweep(["a=1,2", "b.c=x"]) == [["a=1", "b.c=x"], ["a=2", "b.c=x"]]
    assert sweep(["a=1,2", "b=3,4,5"])[1] == ["a=1", "b=4"]
    assert sweep(["a=[1,2],[3]", "b='x,y'"]) == [["a=[1,2]", "b='x,y'"], ["a=[3]", "b='x,y'"]]


@pytest.mark.parametrize("texts", [["a"], ["a="], ["a=1,"], ["=1"], ["a=1,2", "a=3"], ["given=1,2"]])
def test_sweep_that_is_none(texts: list[str]) -> None:
    with pytest.raises(UserError, match="--sweep"):
        sweep(texts, ["given=3"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "two words"}, "--job-name"),
        ({"partition": "gpu; rm -rf /"}, "--partition"),
        ({"account": "a\nb"}, "--account"),
        ({"setup": ["module load a\nmodule load b"]}, "must be one line"),
        ({"directives": ["--mem=0\n#SBATCH --exclusive"]}, "must be one line"),
        ({"folder": "/runs/50%"}, "--output-folder"),
        ({"folder": "/my runs", "scheduler": "pbs", "launcher": "mpirun"}, "with spaces"),
        ({"scheduler": "lsf", "folder": "/a"}, "--launcher srun belongs to Slurm"),
        ({"seconds": 60, "warning_seconds": 60}, "--save-before 60"),
        ({"tasks": [["a=1"]] * 1001}, "1001 runs"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_script_cannot_carry(changes: dict[str, Any], message: str) -> None:
    good = {"scheduler": "slurm", "name": "a", "title": "a", "directory": "/a", "folder": "/a b", "command": ["a"]}
    JobRequest(**good).check()
    with pytest.raises(UserError, match=message):
        JobRequest(**(good | changes)).check()
