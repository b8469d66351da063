"""Transfers of GPU memory: handed to MPI where it lies, or through pinned host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.transfer import Bytes, Cuts, Transfer

if TYPE_CHECKING:
    from mpi4py import MPI


class Device(Protocol):
    """What a transfer needs of a GPU; see :class:`dist_mp.codec.cuda_device.CudaDevice`."""

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory."""
        ...

    def for_mpi(self, array: Any) -> Any:
        """What mpi4py takes for a device array."""
        ...

    def to_host(self, array: Any, host: NDArray[Any]) -> None:
        """Queue a copy to the host."""
        ...

    def to_device(self, host: NDArray[Any], array: Any) -> None:
        """Queue a copy to the device."""
        ...

    def synchronise(self) -> None:
        """Wait for everything queued."""
        ...


class DeviceTransfer:
    """Collective moves of bytes between the GPUs of a communicator's ranks.

    Each move is two calls: :meth:`ready` waits, once, until the GPU has the bytes to send; then the move itself. What
    arrives is in place for whatever is queued on the device's stream afterwards. Arrays are uint8 device arrays, or
    NumPy arrays without bytes.
    """

    moves: int = 0
    """Moves so far."""

    def __init__(self, comm: MPI.Intracomm, device: Device, direct: bool, sent_bytes: int, received_bytes: int) -> None:
        """Prepare moves of up to so many bytes.

        Args:
            comm: the ranks.
            device: of this rank.
            direct: hand device memory to MPI, which must be able to take it; otherwise stage.
            sent_bytes: longest buffer that is sent.
            received_bytes: longest buffer that is filled.
        """
        self._transfer, self._device, self._direct = Transfer(comm), device, direct
        self.rank, self.size = self._transfer.rank, self._transfer.size
        self._to_send = device.pinned(0 if direct else sent_bytes)
        self._arrived = device.pinned(0 if direct else received_bytes)

    def wait(self) -> None:
        """Wait for all ranks."""
        self._transfer.wait()

    def ready(self, source: Any) -> None:
        """Wait until `source`, and all else that is queued, is done; it can then be moved."""
        if not self._direct and len(source):
            self._device.to_host(source, self._to_send[: len(source)])
        self._device.synchronise()

    def to_owners(self, source: Any, cuts: Cuts, received: Any) -> None:
        """Send piece r of `source` to rank r; `received` gets every rank's copy of our piece, in rank order."""
        self._transfer.to_owners(self._sent(source), cuts, self._filled(received))
        self._keep(received)

    def to_all(self, piece: Any, cuts: Cuts, target: Any) -> None:
        """Fill `target` with every owner's piece; ours is `piece`."""
        self._transfer.to_all(self._sent(piece), cuts, self._filled(target))
        self._keep(target)

    def gather(self, source: Any, received: Any) -> None:
        """Fill `received` with the whole buffer of every rank, in rank order."""
        self._transfer.gather(self._sent(source), self._filled(received))
        self._keep(received)

    def _sent(self, source: Any) -> Bytes:
        return self._memory(source, self._to_send)

    def _filled(self, target: Any) -> Bytes:
        return self._memory(target, self._arrived)

    def _memory(self, array: Any, staging: Bytes) -> Any:
        if isinstance(array, np.ndarray):
            return array
        return self._device.for_mpi(array) if self._direct else staging[: len(array)]

    def _keep(self, target: Any) -> None:
        # The pinned memory is used again only after the next ready(), which waits for this copy too.
        self.moves += 1
        if not self._direct and len(target):
            self._device.to_device(self._arrived[: len(target)], target)
