"""The MPI library that this process has loaded, and the mpi4py that loaded it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dist_mp.comm.world import World


@dataclass(frozen=True)
class LibraryFacts:
    """Both sides of mpi4py."""

    vendor: str
    version: str
    standard: str
    """Version of the MPI standard."""
    path: str
    """The shared library; empty where the system does not say."""
    mpi4py: str
    """Its version."""
    built_for: str
    """The MPI that mpi4py's extension module was built for; empty where its name does not say."""
    threads: str
    """Level of thread support: multiple, serialized, funneled or single."""


def library_facts(world: World) -> LibraryFacts:
    """What the library says of itself. Not collective."""
    import mpi4py

    mpi = world.mpi
    vendor, version = mpi.get_vendor()
    levels = {
        mpi.THREAD_MULTIPLE: "multiple",
        mpi.THREAD_SERIALIZED: "serialized",
        mpi.THREAD_FUNNELED: "funneled",
        mpi.THREAD_SINGLE: "single",
    }
    # Wheels of mpi4py have a module for each MPI: MPI.openmpi.cpython-...so, MPI.mpich.cpython-...so.
    parts = Path(mpi.__file__).name.split(".")
    built_for = parts[1] if len(parts) > 3 else str(mpi4py.get_config().get("mpicc", ""))
    return LibraryFacts(
        vendor=vendor,
        version=".".join(map(str, version)),
        standard=".".join(map(str, mpi.Get_version())),
        path=_loaded("libmpi"),
        mpi4py=mpi4py.__version__,
        built_for=built_for,
        threads=levels.get(mpi.Query_thread(), "unknown"),
    )


def _loaded(name: str) -> str:
    """Path of the first shared library of this process whose name begins so (Linux)."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    paths = [line.split(maxsplit=5)[-1] for line in lines if "/" in line]
    return next((path for path in paths if Path(path).name.startswith(name) and ".so" in Path(path).name), "")
