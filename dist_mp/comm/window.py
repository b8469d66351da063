"""Memory that the ranks of a node share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.errors import UserError

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


def round_up(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class SharedWindow:
    """One segment of bytes a rank, which every rank of the node reads and writes as its own memory.

    Collective over the node at construction and in :meth:`close`. The segments start at a multiple of 64 bytes and
    are zero at first. Who may touch what when is the caller's matter; :meth:`wait` is a barrier after which
    everything written before it is seen by all.
    """

    segments: tuple[NDArray[np.uint8], ...]
    """The segment of each local rank."""

    def __init__(self, world: World, nbytes: int) -> None:
        """Allocate `nbytes` on this rank; all ranks of the node ask for the same.

        Raises:
            UserError: the node has no room for it.
        """
        mpi = world.mpi
        self._node_comm = world.node_comm
        info = mpi.Info.Create()
        # Each segment on pages of its own, so that they lie near the core that touches them first.
        info.Set("alloc_shared_noncontig", "true")
        try:
            self._window = mpi.Win.Allocate_shared(nbytes + ALIGNMENT, 1, info=info, comm=self._node_comm)
        except mpi.Exception as error:
            raise UserError(
                f"no room for {world.local_size} x {nbytes} bytes of shared memory on this node ({error}): "
                "enlarge /dev/shm (docker: --shm-size) or set exchange.algorithm to pieces"
            ) from error
        finally:
            info.Free()
        memory = [self._bytes(rank) for rank in range(world.local_size)]
        # Only the owner knows where its mapping is aligned; with one rank MPI may take any memory.
        own = -memory[world.local_rank].ctypes.data % ALIGNMENT
        offsets = self._node_comm.allgather(own)
        self.segments = tuple(m[o : o + nbytes] for m, o in zip(memory, offsets, strict=True))
        self._window.Lock_all(mpi.MODE_NOCHECK)
        self.segments[world.local_rank].fill(0)
        self.wait()

    def _bytes(self, rank: int) -> NDArray[np.uint8]:
        buffer, _ = self._window.Shared_query(rank)
        return np.frombuffer(buffer, np.uint8)

    def wait(self) -> None:
        """Wait for all ranks of the node; what they wrote before is seen after."""
        self._window.Sync()
        self._node_comm.Barrier()
        self._window.Sync()

    def close(self) -> None:
        """Give the memory back; the segments must not be touched any more. A second call does nothing."""
        if self.segments:
            self.segments = ()
            self._window.Unlock_all()
            self._window.Free()
