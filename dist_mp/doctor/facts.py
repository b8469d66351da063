"""What one rank sees of its machine and of its start."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from dist_mp import __version__
from dist_mp.comm.launcher import launcher_name, rank_and_size
from dist_mp.comm.library import library_facts
from dist_mp.comm.world import World
from dist_mp.launch.mpirun import this_machine
from dist_mp.precision.policy import host_features

FEATURES = ("avx2", "f16c", "avx512f", "avx512bf16", "avx512fp16", "amx-bf16", "amx-fp16", "amx-int8")
"""Instruction sets that decide about speed, by LLVM's names."""
PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "numba", "mpi4py", "numba-cuda")
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


@dataclass(frozen=True)
class RankFacts:
    """Of one rank; all of it goes through JSON."""

    rank: int
    size: int
    """Ranks of the communicator."""
    local_rank: int
    node: int
    num_nodes: int
    host: str
    slurm_node: str
    launcher: str
    """Empty outside a job."""
    launcher_size: int
    """Ranks that the launcher says it started; 0 outside a job."""
    library: dict[str, str]
    """:class:`dist_mp.comm.library.LibraryFacts`."""
    versions: dict[str, str]
    python: str
    processor: str
    features: list[str]
    machine_cores: int
    cores: list[int]
    """Logical cores that this rank may use."""
    numa_nodes: int
    threads: dict[str, str]
    memory_bytes: int
    """Memory of the machine that is available."""
    shared_bytes: int
    """Room in /dev/shm."""
    memlock_bytes: int
    """Memory that may be locked; -1 without limit."""
    gpus: list[str]
    interfaces: list[dict[str, Any]]
    """Networks that are up, loopback aside: name, Mbit/s (0 unknown), mtu."""
    fabrics: list[str]
    """InfiniBand and RoCE ports."""


def rank_facts(world: World) -> RankFacts:
    """Look around. Not collective."""
    place = rank_and_size(os.environ)
    machine = this_machine()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(machine.cores))
    features = host_features()
    return RankFacts(
        rank=world.rank,
        size=world.size,
        local_rank=world.local_rank,
        node=world.node,
        num_nodes=world.num_nodes,
        host=platform.node(),
        slurm_node=os.environ.get("SLURMD_NODENAME", ""),
        launcher=launcher_name(os.environ),
        launcher_size=place[1] if place else 0,
        library=asdict(library_facts(world)),
        versions=versions(),
        python=sys.executable,
        processor=_processor(),
        features=[name for name in FEATURES if features.get(name)],
        machine_cores=os.cpu_count() or 1,
        cores=cores,
        numa_nodes=machine.numa_nodes,
        threads={name: os.environ[name] for name in THREADS if name in os.environ},
        memory_bytes=psutil.virtual_memory().available,
        shared_bytes=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        gpus=_gpus(),
        interfaces=_interfaces(),
        fabrics=_fabrics(),
    )


def versions() -> dict[str, str]:
    """Versions of what is installed, by name."""
    found = {"dist_mp": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _gpus() -> list[str]:
    """NVIDIA's list of GPUs that this process may use, without their identities."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split(" (UUID")[0] for line in done.stdout.splitlines() if line.startswith("GPU ")]


def _interfaces() -> list[dict[str, Any]]:
    return [
        {"name": name, "mbit": facts.speed, "mtu": facts.mtu}
        for name, facts in sorted(psutil.net_if_stats().items())
        if facts.isup and "loopback" not in facts.flags
    ]


def _fabrics() -> list[str]:
    ports = []
    for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        try:
            state = (port / "state").read_text().split(":")[-1].strip().lower()
            ports.append(f"{port.parts[-3]} port {port.name}: {state}, {(port / 'rate').read_text().strip()}")
        except OSError:
            continue
    return ports
