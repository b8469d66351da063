"""What the launcher (mpirun or srun) says about this process, before and beside MPI."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dist_mp.errors import EXIT_USER_ERROR, UserError


def rank_and_size(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """This process's rank and the number of ranks as mpirun or srun tells them; None outside a job. No MPI call."""
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        return int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
    return None


def launcher_name(environ: Mapping[str, str]) -> str:
    """Which launcher started this process; empty outside a job."""
    if "OMPI_COMM_WORLD_SIZE" in environ:
        return "mpirun (Open MPI)"
    if "SLURM_STEP_NUM_TASKS" in environ and "MPI_LOCALRANKID" not in environ:
        return f"srun --mpi={environ.get('SLURM_MPI_TYPE', 'none')}"
    return "mpirun (MPICH or Intel MPI)" if "PMI_SIZE" in environ else ""


def mismatch(environ: Mapping[str, str], size: int, vendor: str) -> str | None:
    """Why ranks do not see each other; None where the launcher's number of ranks is the communicator's.

    Args:
        environ: of this process.
        size: of COMM_WORLD.
        vendor: of the MPI library, as mpi4py names it.
    """
    place = rank_and_size(environ)
    if place is None or place[1] == size:
        return None
    launcher = launcher_name(environ)
    said = f"{launcher} started {place[1]} ranks, but {vendor} sees {size}: they do not meet"
    if launcher.startswith("srun"):
        wanted = "pmix" if vendor == "Open MPI" else "pmi2"
        return f"{said}; start them with srun --mpi={wanted}, or with dist-mp run -n {place[1]}"
    return f"{said}; the mpirun is of another MPI than the library: dist-mp doctor shows both"


def check_launcher(environ: Mapping[str, str], size: int, vendor: str, patience: float = 1.0) -> None:
    """End this process where the ranks of a job do not see each other, each of them a world of its own.

    The launcher's rank 0 raises the UserError. The others end with the same status and without a word, after
    `patience` seconds, so that a launcher that ends the job with its first rank does not silence rank 0.
    """
    problem = mismatch(environ, size, vendor)
    if problem is None:
        return
    place = rank_and_size(environ)
    if place is not None and place[0]:
        time.sleep(patience)
        raise SystemExit(EXIT_USER_ERROR)
    raise UserError(problem)
