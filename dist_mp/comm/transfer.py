"""Bytes between the ranks of a communicator: every rank's piece to its owner, and every owner's piece to all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = NDArray[np.uint8]

MAX_BYTES = 2**31 - 1
"""MPI counts and displacements in a C int; one call must not move more than this."""


class Cuts:
    """A buffer cut into consecutive pieces of bytes, piece r for rank r; pieces may be empty."""

    counts: tuple[int, ...]
    starts: tuple[int, ...]

    def __init__(self, bounds: Sequence[int]) -> None:
        """Take the bounds of the pieces: the first is 0, the last is the length of the buffer (bytes)."""
        self.starts = tuple(bounds[:-1])
        self.counts = tuple(end - start for start, end in pairwise(bounds))

    def piece(self, buffer: Bytes, rank: int) -> Bytes:
        """The view of a rank's piece."""
        return buffer[self.starts[rank] : self.starts[rank] + self.counts[rank]]


class Transfer:
    """Collective moves of bytes. MPI does no arithmetic here, so any type of number travels as it is."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Move bytes between the ranks of `comm`."""
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def wait(self) -> None:
        """Wait for all ranks."""
        self._comm.Barrier()

    def to_owners(self, buffer: Bytes, cuts: Cuts, received: Bytes) -> None:
        """Send piece r of `buffer` to rank r; `received` gets every rank's copy of our piece, in rank order."""
        n = cuts.counts[self.rank]
        theirs = ([n] * self.size, [r * n for r in range(self.size)])
        self._comm.Alltoallv((buffer, (cuts.counts, cuts.starts)), (received[: n * self.size], theirs))

    def to_all(self, piece: Bytes, cuts: Cuts, buffer: Bytes) -> None:
        """Fill `buffer` with every owner's piece; ours is `piece`, which must lie outside of `buffer`."""
        self._comm.Allgatherv(piece, (buffer, (cuts.counts, cuts.starts)))

    def gather(self, buffer: Bytes, received: Bytes) -> None:
        """Fill `received` with the whole buffer of every rank, in rank order."""
        self._comm.Allgather(buffer, received[: len(buffer) * self.size])
