"""Launcher against communicator, by the variables that launchers set (recorded under the real ones)."""

from __future__ import annotations

import pytest

from dist_mp.comm.launcher import check_launcher, launcher_name, mismatch, rank_and_size
from dist_mp.errors import UserError

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
SRUN_PMIX = SRUN | {"SLURM_MPI_TYPE": "pmix", "PMIX_RANK": "1"}
SRUN_PMI2 = SRUN | {"SLURM_MPI_TYPE": "pmi2", "PMI_RANK": "1", "PMI_SIZE": "4"}
# In a Slurm job both mpiruns start their daemons with srun, one a node, and the ranks inherit its variables.
DAEMONS = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, ""),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "12"}, ""),  # a batch script
        (OPEN_MPI, "mpirun (Open MPI)"),
        (OPEN_MPI | DAEMONS, "mpirun (Open MPI)"),
        (HYDRA, "mpirun (MPICH or Intel MPI)"),
        (HYDRA | DAEMONS, "mpirun (MPICH or Intel MPI)"),
        (SRUN, "srun --mpi=none"),
        (SRUN_PMIX, "srun --mpi=pmix"),
        (SRUN_PMI2, "srun --mpi=pmi2"),
    ],
)
def test_launcher_and_place(environ: dict[str, str], name: str) -> None:
    assert launcher_name(environ) == name
    assert rank_and_size(environ) == ((1, 4) if name else None)


def test_ranks_that_meet() -> None:
    for environ in (OPEN_MPI, OPEN_MPI | DAEMONS, HYDRA | DAEMONS, SRUN_PMIX, SRUN_PMI2):
        assert mismatch(environ, 4, "Open MPI") is None
        check_launcher(environ, 4, "Open MPI")
    check_launcher({}, 1, "MPICH")


def test_ranks_that_do_not_meet() -> None:
    """Rank 0 says so, the others end without a word."""
    said = mismatch(SRUN, 1, "Open MPI")
    assert said is not None and said.startswith("srun --mpi=none started 4 ranks, but Open MPI sees 1: ")
    assert "srun --mpi=pmix, or with dist-mp run -n 4" in said
    assert "srun --mpi=pmi2" in str(mismatch(SRUN_PMIX, 1, "MPICH"))
    assert "mpirun is of another MPI" in str(mismatch(OPEN_MPI, 1, "MPICH"))
    with pytest.raises(UserError, match="they do not meet"):
        check_launcher(SRUN | {"SLURM_PROCID": "0"}, 1, "Open MPI")
    with pytest.raises(SystemExit) as end:
        check_launcher(SRUN, 1, "Open MPI", patience=0.0)
    assert end.value.code == 2
