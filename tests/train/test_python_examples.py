"""The examples of docs/python_api.md run under mpirun as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python_api.md"


@pytest.mark.mpi(ranks=[2], timeout=150)
def test_examples_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        names: dict[str, object] = {"__name__": "example"}
        exec(compile(example, str(PAGE), "exec"), names)
        losses = names["curves"]["loss"] if "curves" in names else [float(names["loss"])]
        assert all(value < 1000 for value in losses)
