"""What a run ran on and with: versions, processor, command line, and the variables that steer it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata

import psutil

from dist_mp import __version__

PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "numba", "llvmlite", "mpi4py", "horovod", "numba-cuda")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "LSB_JOBID", "MALLOC_ARENA_MAX", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "PBS_JOBID", "SLURM_JOB_ID", "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION", "SLURM_NTASKS", "SLURM_RESTART_COUNT", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS",
)  # fmt: skip
PREFIXES = ("FI_", "I_MPI_", "KMP_", "MPICH_", "NCCL_", "NUMBA_", "OMPI_MCA_", "UCX_")
SHOWN_VARIABLES = 60
LONGEST_VALUE = 300
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "URI", "AUTH")
"""A variable with such a word in its name is never written down."""


def software(mpi_library: str) -> dict[str, str]:
    """Versions of what the run is made of; `mpi_library` is what the MPI library calls itself."""
    versions = {"dist_mp": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions | {"MPI": mpi_library, "system": f"{platform.system()} {platform.release()}"}


def hardware(gpus: int) -> dict[str, str]:
    """Processor, cores and memory of this host, and the GPUs that this rank sees."""
    return {
        "processor": _processor(),
        "cores": f"{psutil.cpu_count(logical=False) or '?'} ({len(psutil.Process().cpu_affinity())} usable threads)",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPUs": str(gpus),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that steer threads, MPI and GPUs, and name the job; never one with a secret."""
    chosen = {
        name: value[:LONGEST_VALUE]
        for name, value in sorted(environment.items())
        if (name in VARIABLES or name.startswith(PREFIXES)) and not any(word in name.upper() for word in SECRET_WORDS)
    }
    return dict(list(chosen.items())[:SHOWN_VARIABLES])


def command_line() -> list[str]:
    """The words that started this process."""
    return list(sys.orig_argv)


def working_folder() -> str:
    """Where relative paths begin; empty where that folder is gone."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
