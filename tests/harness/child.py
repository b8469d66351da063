"""One rank of an MPI test: imports the test module, runs one test body, and writes how it went.

Started by :mod:`tests.harness.runner` as ``mpirun -n N python -m tests.harness.child FOLDER``.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from dist_mp.launch.mpirun import rank_and_size

GRACE = 2.0
"""Seconds that a failed rank waits for the reports of the others before it ends the job."""


def main(folder: Path) -> None:
    """Run the body described by ``folder/call.pickle`` as one rank; end the whole job if it raises."""
    place = rank_and_size(os.environ)
    if place is None:
        raise SystemExit("not started by mpirun")
    rank, size = place
    with open(folder / "call.pickle", "rb") as file:
        call = pickle.load(file)
    if size != call["ranks"]:
        raise SystemExit(f"mpirun started {size} ranks, not {call['ranks']}")
    output = open(folder / f"rank-{rank:03d}.out", "wb", buffering=0)  # noqa: SIM115 (open to the end)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    stacks = open(folder / f"rank-{rank:03d}.stacks", "w")  # noqa: SIM115
    faulthandler.enable(stacks)
    faulthandler.dump_traceback_later(max(1.0, call["timeout"] - 1.0), file=stacks)
    try:
        _body(call)(**call["arguments"])
    except pytest.skip.Exception as skip:
        _report(folder, rank, "skipped", str(skip))
    except BaseException as error:
        _report(folder, rank, "failed", _text(error, Path(call["file"])))
        _abort(folder, size)
    else:
        _report(folder, rank, "passed", "")
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        mpi.COMM_WORLD.Barrier()  # a rank whose body returned waits here for the verdict of the others


def _body(call: dict[str, Any]) -> Any:
    """The test function, from its file."""
    spec = importlib.util.spec_from_file_location(call["module"], call["file"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[call["module"]] = module
    spec.loader.exec_module(module)
    if call["class"]:
        return getattr(getattr(module, call["class"])(), call["function"])
    return getattr(module, call["function"])


def _report(folder: Path, rank: int, outcome: str, text: str) -> None:
    """Write a rank's verdict; it appears as a whole or not at all."""
    written = folder / f"rank-{rank:03d}.part"
    written.write_text(json.dumps({"outcome": outcome, "text": text}))
    written.rename(folder / f"rank-{rank:03d}.json")


def _abort(folder: Path, size: int) -> None:
    """End the job, once every rank has reported or the grace is over."""
    end = time.monotonic() + GRACE
    while len(list(folder.glob("rank-*.json"))) < size and time.monotonic() < end:
        time.sleep(0.02)
    sys.stdout.flush()
    sys.stderr.flush()
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(1)
    os._exit(1)


def _text(error: BaseException, test_file: Path) -> str:
    """The traceback from the test's own frame on, with the local variables of its last frame in the test file."""
    first: TracebackType | None = error.__traceback__
    while first is not None and Path(first.tb_frame.f_code.co_filename) != test_file:
        first = first.tb_next
    lines = traceback.format_exception(type(error), error, first or error.__traceback__)
    last = first
    step = first
    while step is not None:
        if Path(step.tb_frame.f_code.co_filename) == test_file:
            last = step
        step = step.tb_next
    if last is not None:
        for name, value in last.tb_frame.f_locals.items():
            lines.append(f"    {name} = {_short(value)}\n")
    return "".join(lines)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<repr failed: {error}>"
    return text if len(text) <= 300 else text[:300] + "..."


if __name__ == "__main__":
    main(Path(sys.argv[1]))
