"""One GPU as the exchange sees it: memory, one stream, and a count of the times that the host waited for it.

With NUMBA_ENABLE_CUDASIM=1 the device is Numba's simulator, whose memory is that of the host.
"""

from __future__ import annotations

import ctypes
import warnings
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numba import config, cuda
from numpy.typing import NDArray

THREADS, SIMULATED_THREADS = 128, 16
ALIGNMENT = 64


class CudaDevice:
    """A GPU with a stream of our own, on which everything is queued in order.

    Device arrays are `numba.cuda` arrays, one-dimensional and contiguous.
    """

    synchronisations: int = 0
    """How often :meth:`synchronise` was called."""

    def __init__(self, index: int = 0) -> None:
        """Open the GPU with this CUDA number."""
        self.index = index
        self.simulated = bool(config.ENABLE_CUDASIM)
        """Whether this is the simulator."""
        self.threads = SIMULATED_THREADS if self.simulated else THREADS
        """Of a block. The simulator starts a thread of the host for each."""
        # Small gradients make small grids, on purpose.
        warnings.filterwarnings("ignore", message="Grid size .* under-utilization")
        with self.active():
            self.stream = cuda.stream()
        self._clear = self._clearing()

    def active(self) -> AbstractContextManager[Any]:
        """While inside, this is the GPU of the calling thread; kernels are launched and views made inside only.

        Host calls of a graph come from any thread, and a thread begins with GPU 0.
        """
        context: AbstractContextManager[Any] = cuda.gpus[self.index]
        return context

    def empty(self, n: int, dtype: Any) -> Any:
        """A device array of n numbers, or of one if n is 0."""
        if not self.simulated:
            with self.active():
                return cuda.device_array(max(n, 1), dtype)
        # As on a GPU, memory begins where any kernel and framework can use it.
        nbytes = max(n, 1) * np.dtype(dtype).itemsize
        room = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        return self._simulated(room[start : start + nbytes].view(dtype))

    def from_host(self, numbers: NDArray[Any]) -> Any:
        """A device array with these numbers; waits for the copy."""
        array = self.empty(numbers.size, numbers.dtype)
        if numbers.size:
            with self.active():
                array.copy_to_device(numbers)
        return array

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory, from and to which copies run beside the host."""
        with self.active():
            pinned: NDArray[np.uint8] = cuda.pinned_array(max(nbytes, 1), dtype=np.uint8)
        return pinned[:nbytes]

    def wrap(self, pointer: int, n: int, dtype: Any, owner: object = None) -> Any:
        """Device memory of somebody else as a device array; no copy. `owner` is kept alive with it."""
        if self.simulated:
            memory = (ctypes.c_ubyte * (n * np.dtype(dtype).itemsize)).from_address(pointer)
            return self._simulated(np.frombuffer(memory, dtype))
        with self.active():
            return cuda.as_cuda_array(_Memory(pointer, n, dtype, owner))

    def pointer(self, array: Any) -> int:
        """Where a device array begins."""
        return int(array.ctypes.data if self.simulated else array.__cuda_array_interface__["data"][0])

    def for_mpi(self, array: Any) -> Any:
        """What mpi4py takes to move the bytes of a device array where they lie."""
        return array._ary if self.simulated else array

    def to_host(self, array: Any, host: NDArray[Any]) -> None:
        """Queue a copy of a device array into host memory."""
        array.copy_to_host(host, stream=self.stream)

    def to_device(self, host: NDArray[Any], array: Any) -> None:
        """Queue a copy of host memory into a device array."""
        array.copy_to_device(host, stream=self.stream)

    def copy(self, source: Any, target: Any) -> None:
        """Queue a copy between device arrays."""
        target.copy_to_device(source, stream=self.stream)

    def clear(self, array: Any) -> None:
        """Queue setting the bytes of a device array (uint8) to 0."""
        self._clear[self.grid(array.size)](array)

    def grid(self, n: int) -> tuple[int, int, Any]:
        """Blocks, threads and stream of a kernel that has one thread for each of n numbers."""
        return -(-n // self.threads), self.threads, self.stream

    def synchronise(self) -> None:
        """Wait until everything queued is done."""
        self.synchronisations += 1
        self.stream.synchronize()

    def _simulated(self, array: NDArray[Any]) -> Any:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        return FakeCUDAArray(array)

    def _clearing(self) -> Any:
        @cuda.jit
        def clear(array: Any) -> None:
            i = cuda.grid(1)
            if i < array.size:
                array[i] = 0

        return clear


class _Memory:
    """Device memory that another library owns, in the words of the CUDA Array Interface, version 3."""

    def __init__(self, pointer: int, n: int, dtype: Any, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (n,),
            "typestr": np.dtype(dtype).str,
            "data": (pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }
