"""mpirun's messages about the end of a job become one line; a job's own output passes unchanged, in any cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dist_mp.launch.banner import BannerFilter

RULE = b"-" * 74 + b"\n"
EXIT = (
    RULE
    + b"""prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-23@1,1]
   Exit code:    3
"""
    + RULE
)
ABORT = (
    RULE
    + b"""MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
  Proc: [[51361,1],2]
  Errorcode: 1

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
"""
    + RULE
)
KILLED = (
    RULE
    + b"""prterun noticed that process rank 1 with PID 4711 on node vm exited on
signal 9 (Killed).
"""
    + RULE
)
LOST = (
    RULE
    + b"""PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-vm-22509@0,0] on node vm
  Remote daemon: [prterun-vm-22509@0,2] on node n2

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
"""
    + RULE
)
HYDRA = (
    b"=" * 83
    + b"""
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4712 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
"""
    + b"=" * 83
    + b"""
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
)
HYDRA_ABORT = b"Abort(1) on node 2 (rank 2 in comm 0): application called MPI_Abort(comm=0x84000001, 1) - process 2\n"
WARNING = RULE + b"WARNING: Open MPI will create a shared memory backing file in a directory on NFS.\n" + RULE
OWN = b"epoch 1/3 step 4\rloss -----\n----\n\n" + b"=" * 20 + b"\nAbort the mission\n" + b"\xc3\xa9 and \xff\n"


def shown(text: bytes, cuts: list[int]) -> tuple[bytes, str | None]:
    """What passes when the text comes in pieces, and what mpirun said in one line."""
    banner = BannerFilter()
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    out = b"".join(banner.feed(text[a:b]) for a, b in pairwise(edges)) + banner.flush()
    return out, None if banner.ending is None else str(banner.ending)


CUTS = st.lists(st.integers(0, 5000), max_size=12)


@given(CUTS)
def test_own_output_passes(cuts: list[int]) -> None:
    assert shown(OWN, cuts) == (OWN, None)
    assert shown(OWN + RULE + b"no end", cuts) == (OWN + RULE + b"no end", None)
    assert shown(WARNING + OWN, cuts) == (WARNING + OWN, None)


@given(CUTS)
def test_open_mpi_endings(cuts: list[int]) -> None:
    assert shown(OWN + EXIT, cuts) == (OWN, "rank 1 ended the job with status 3")
    assert shown(OWN + ABORT, cuts) == (OWN, "rank 2 ended the job with status 1")
    killed = "rank 1 was ended by signal 9 (Killed); the system may have run out of memory"
    assert shown(OWN + KILLED, cuts) == (OWN, killed)
    assert shown(b"\0" + OWN + ABORT + b"\0 ", cuts) == (OWN, "rank 2 ended the job with status 1")
    assert shown(OWN + LOST, cuts) == (OWN, "mpirun lost node n2: it went down, or its network did")
    assert shown(ABORT + OWN + EXIT, cuts) == (OWN, "rank 2 ended the job with status 1")


@given(CUTS)
def test_hydra_endings(cuts: list[int]) -> None:
    killed = "process 4712 on vm was ended by signal 9 (Killed); the system may have run out of memory"
    killed += ", or another rank failed first"
    assert shown(OWN + HYDRA, cuts) == (OWN, killed)
    assert shown(HYDRA_ABORT + OWN, cuts) == (OWN, "rank 2 ended the job with status 1")


def test_what_a_user_can_mend_is_passed_on() -> None:
    asked = RULE + b"There are not enough slots available in the system to satisfy the 9\nslots\n" + RULE
    assert shown(asked, [])[0] == b"mpirun: not enough slots in the hostfile for so many ranks\n"


def test_a_live_line_is_not_held_back() -> None:
    banner = BannerFilter()
    assert banner.feed(b"\repoch 1 ") == b"\repoch 1 "
    assert banner.feed(b"step 2") == b"step 2"
    assert banner.feed(b"\n" + b"-" * 30) == b"\n"
    assert banner.holds
    assert banner.flush() == b"-" * 30
