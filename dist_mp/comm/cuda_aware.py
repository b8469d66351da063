"""Whether GPU memory may be handed to the MPI library, found out in a child process.

A library that cannot do it often does not say so but reads a GPU's address as its own and crashes
(conda-forge/openmpi-feedstock#83, open-mpi/ompi#7963). So the question is put, and a transfer tried, in a process
whose end harms nobody. The child is a job of its own with one rank, which sends to itself: that shows whether the
library knows GPU memory, not whether every network of the machine does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROBE = (sys.executable, "-m", "dist_mp.comm.cuda_probe")
TIMEOUT_SECONDS = 60.0

_LAUNCHER = ("OMPI_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "HYDI_", "HYDRA_", "PALS_", "MPI_LOCAL", "SLURM_")
"""Variables that make a process a rank of the job."""
_OF_THE_USER = ("OMPI_MCA_", "OMPI_ALLOW_RUN_AS_ROOT")
"""Variables of these that set the library up, and count in the child too."""
_OF_THE_JOB = ("num_procs", "initial_wdir", "ess", "orte", "prte", "pmix", "plm", "schizo")


@dataclass(frozen=True)
class CudaSupport:
    """What became of the question."""

    aware: bool
    """Whether GPU memory may be handed to MPI."""
    source: str
    """Library, answer and who gave it, for a header or a message."""


def probe_cuda(
    gpu: int | None = None, *, program: Sequence[str] = PROBE, timeout: float = TIMEOUT_SECONDS
) -> CudaSupport:
    """Find out in a child process whether the MPI library takes GPU memory. Not collective.

    Args:
        gpu: CUDA number of the GPU to try a transfer with; None: ask only.
        program: of the child.
        timeout: after which the child is ended and the answer is no (s).
    """
    # The simulator's arrays lie in host memory and would show nothing.
    environment = {k: v for k, v in child_environment(os.environ).items() if k != "NUMBA_ENABLE_CUDASIM"}
    command = [*program, *([] if gpu is None else [str(gpu)])]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        output, ending = done.stdout, "" if done.returncode == 0 else _ending(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        ending = f"did not end within {timeout:g} s"
    return judge(output, ending)


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those by which a launcher makes a process a rank; a user's own settings stay."""

    def kept(name: str) -> bool:
        if name.startswith(_OF_THE_USER):
            return not name.removeprefix("OMPI_MCA_").startswith(_OF_THE_JOB)
        return not name.startswith(_LAUNCHER)

    return {name: value for name, value in environ.items() if kept(name)}


def judge(output: str, ending: str) -> CudaSupport:
    """The answer from what the child wrote, and how it ended ("" if well)."""
    answers: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            answers |= json.loads(line)
    library = answers.get("library", "the MPI library")
    if "says" not in answers:
        return CudaSupport(False, f"{library}: a process that asks it {ending or 'gave no answer'}")
    says, because, tried = answers["says"], answers["because"], answers.get("transfer")
    source = f"{library}: {because}"
    if says is False:
        return CudaSupport(False, source)
    if tried is None:
        return CudaSupport(says is True, f"{source}; no transfer was tried")
    if tried == "ok":
        return CudaSupport(True, f"{source}; a transfer of GPU memory in a child process went well")
    why = ending if tried == "begun" else f"failed ({tried})"
    return CudaSupport(False, f"{source}; a transfer of GPU memory in a child process {why}")


def _ending(status: int, stderr: str) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    last = stderr.strip().splitlines()
    return f"ended with status {status}{f' ({last[-1].strip()[:120]})' if last else ''}"
