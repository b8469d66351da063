"""Whether MPI takes GPU memory: asked in a child process, which may crash or hang."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from dist_mp.comm.cuda_aware import CudaSupport, child_environment, judge, probe_cuda
from dist_mp.comm.cuda_probe import switched

SAID = {"library": "Some MPI 1.2", "says": True, "because": "MPIX_Query_cuda_support says yes"}


def child(*lines: dict[str, Any], then: str = "pass") -> list[str]:
    """A program in the place of the probe, which gives these answers and then ends in some way."""
    written = "".join(f"print({json.dumps(line)!r}, flush=True)\n" for line in lines)
    return [sys.executable, "-c", f"import os, signal, time\n{written}{then}"]


@pytest.mark.parametrize(
    ("transfer", "aware", "words"),
    [
        ([], True, "no transfer was tried"),
        ([{"transfer": "begun"}, {"transfer": "ok"}], True, "a transfer of GPU memory in a child process went well"),
        ([{"transfer": "begun"}, {"transfer": "64 bytes arrived changed"}], False, "failed (64 bytes arrived changed)"),
    ],
)
def test_yes_counts_unless_a_transfer_fails(transfer: list[dict[str, str]], aware: bool, words: str) -> None:
    support = probe_cuda(program=child(SAID, *transfer))
    assert support.aware is aware
    assert support.source.startswith("Some MPI 1.2: MPIX_Query_cuda_support says yes; ") and words in support.source


def test_a_library_that_cannot_be_asked_is_believed_after_a_transfer_only() -> None:
    silent = SAID | {"says": None, "because": "it cannot be asked"}
    assert not probe_cuda(program=child(silent)).aware
    assert probe_cuda(program=child(silent, {"transfer": "begun"}, {"transfer": "ok"})).aware


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "a transfer of GPU memory in a child process was ended by SIGSEGV"),
        ("raise SystemExit(7)", "a transfer of GPU memory in a child process ended with status 7"),
        ("time.sleep(60)", "a transfer of GPU memory in a child process did not end within 2 s"),
    ],
    ids=["crash", "error", "hang"],
)
def test_a_child_that_does_not_come_back_takes_nothing_with_it(then: str, words: str) -> None:
    begin = time.monotonic()
    support = probe_cuda(0, program=child(SAID, {"transfer": "begun"}, then=then), timeout=2.0)
    assert time.monotonic() - begin < 20
    assert support == CudaSupport(False, f"Some MPI 1.2: MPIX_Query_cuda_support says yes; {words}")


def test_a_child_without_an_answer_means_no() -> None:
    support = probe_cuda(program=child(then="raise OSError('no MPI here')"))
    assert support == CudaSupport(
        False, "the MPI library: a process that asks it ended with status 1 (OSError: no MPI here)"
    )
    assert judge("", "") == CudaSupport(False, "the MPI library: a process that asks it gave no answer")


def test_the_child_is_no_rank_of_the_job() -> None:
    of_the_job = ["OMPI_COMM_WORLD_RANK", "OMPI_MCA_num_procs", "PMIX_RANK", "PMI_FD", "PRTE_LAUNCHED", "SLURM_PROCID"]
    of_the_user = ["PATH", "OMPI_MCA_opal_cuda_support", "OMPI_ALLOW_RUN_AS_ROOT", "UCX_TLS", "MV2_USE_CUDA"]
    environ = dict.fromkeys([*of_the_job, *of_the_user], "1")
    assert sorted(child_environment(environ)) == sorted(of_the_user)


@pytest.mark.mpi(ranks=[2], timeout=60)
def test_this_librarys_answer_from_within_ranks() -> None:
    """The real probe. The libraries that the tests run on are built without CUDA, and say so themselves."""
    from dist_mp.comm.world import World

    with World.open() as world:
        support = probe_cuda(world.rank)
        vendor = world.mpi.get_vendor()[0]
        assert not support.aware
        assert support.source.startswith(vendor) and "MPIX_Query_cuda_support says no" in support.source
        if vendor == "Open MPI":
            assert "built without CUDA" in support.source  # from its MPI_T variable, as ompi_info shows it
        assert world.comm.allgather(world.rank) == [0, 1]  # the job is as it was


@pytest.mark.parametrize(
    ("environ", "says"), [({}, None), ({"MV2_USE_CUDA": "1"}, True), ({"MPICH_GPU_SUPPORT_ENABLED": "0"}, False)]
)
def test_switches_count_where_the_library_cannot_be_asked(environ: dict[str, str], says: bool | None) -> None:
    answer, because = switched(environ)
    assert answer is says and because.startswith("it cannot be asked")
