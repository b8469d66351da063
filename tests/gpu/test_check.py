"""The script for a machine with a GPU, here with small sizes in the simulator."""

from __future__ import annotations

import re
import sys

import pytest

from dist_mp.codec.table import codec_names
from tests.conftest import RunCli
from tests.harness.runner import ROOT

CHECK = [sys.executable, str(ROOT / "tests" / "gpu" / "check.py")]


def test_all_is_equal_in_the_simulator(run_cli: RunCli) -> None:
    done = run_cli(["--simulator"], timeout=200, program=CHECK)
    assert done.rc == 0, done
    rows = re.findall(r"^(.+?)  +equal\b", done.stdout, re.MULTILINE)
    assert [row for row in rows if row.startswith("kernels")] == [f"kernels of {name}" for name in codec_names()]
    assert len([row for row in rows if row.startswith("mean of")]) == 4
    assert done.stdout.splitlines()[-1] == "all is equal"


def test_without_a_gpu_it_says_so(run_cli: RunCli) -> None:
    from numba import cuda

    if cuda.is_available():
        pytest.skip("this machine has a GPU: run tests/gpu/check.py")
    done = run_cli([], program=CHECK)
    assert done.rc == 2 and done.stdout.startswith("no GPU that numba.cuda can use") and not done.stderr, done
    assert len(done.stdout.splitlines()) == 1
