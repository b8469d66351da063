"""What is written down of the machine."""

from __future__ import annotations

import re

from dist_mp.train.environment import hardware, software, variables


def test_environment_has_no_secrets() -> None:
    given = {"OMP_NUM_THREADS": "4", "SLURM_JOB_ID": "7", "AWS_SECRET_ACCESS_KEY": "s", "OMPI_MCA_auth_token": "s",
             "NCCL_DEBUG": "x" * 1000, "HOME": "/home/me", "I_MPI_PASSWORD": "s"}  # fmt: skip
    found = variables(given)
    assert set(found) == {"OMP_NUM_THREADS", "SLURM_JOB_ID", "NCCL_DEBUG"} and len(found["NCCL_DEBUG"]) == 300
    many = {f"NCCL_{number:03d}": "1" for number in range(500)}
    assert len(variables(many)) == 60
    versions = software("Open MPI 5")
    assert versions["MPI"] == "Open MPI 5" and re.match(r"\d+\.\d+", versions["keras"])
    assert hardware(3)["GPUs"] == "3" and hardware(0)["memory"].endswith(" GiB")
