"""Sums by MPI_Allreduce itself, for comparison and for networks that reduce in hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.transfer import MAX_BYTES
from dist_mp.comm.world import World

AddInto = Callable[[NDArray[Any], NDArray[Any]], None]
"""Adds the numbers of the first array to those of the second."""


class NativeSum:
    """In-place sums over all ranks of float32, float16 and bfloat16 arrays.

    float16 is summed as MPI.FLOAT16_T where every rank's library can, otherwise by an operation of our own; bfloat16
    always by an operation of our own. Both kinds round each partial sum to 16 bits.
    """

    half_is_native: bool
    """Whether the library itself sums float16."""

    def __init__(self, world: World, add_half: AddInto, add_bfloat16: AddInto, max_bytes: int = MAX_BYTES) -> None:
        """Make the operations.

        Args:
            world: the ranks.
            add_half: adds uint16 arrays that hold the bits of float16 numbers.
            add_bfloat16: adds int16 arrays that hold the bits of bfloat16 numbers.
            max_bytes: longest transfer of one call.
        """
        self._mpi, self._comm, self._max_bytes = world.mpi, world.comm, max_bytes
        self._half_type = getattr(world.mpi, "FLOAT16_T", world.mpi.DATATYPE_NULL)
        self.half_is_native = all(world.allgather(library_sums_half(world)))
        self._half_op = self._operation(add_half, np.uint16)
        self._bfloat16_op = self._operation(add_bfloat16, np.int16)

    def _operation(self, add: AddInto, dtype: Any) -> Any:
        def combine(source: Any, target: Any, datatype: Any) -> None:
            add(np.frombuffer(source, dtype), np.frombuffer(target, dtype))

        return self._mpi.Op.Create(combine, commute=True)

    def sum_float32(self, numbers: NDArray[np.float32]) -> None:
        """Sum in float32."""
        self._reduce(numbers, self._mpi.FLOAT, self._mpi.SUM)

    def sum_half(self, codes: NDArray[np.uint16]) -> None:
        """Sum in float16."""
        if self.half_is_native:
            self._reduce(codes.view(np.float16), self._half_type, self._mpi.SUM)
        else:
            self._reduce(codes, self._mpi.UINT16_T, self._half_op)

    def sum_bfloat16(self, codes: NDArray[np.int16]) -> None:
        """Sum in bfloat16."""
        self._reduce(codes, self._mpi.INT16_T, self._bfloat16_op)

    def largest(self, number: float) -> float:
        """The largest of the ranks' numbers, none of which is NaN."""
        return float(self._comm.allreduce(number, op=self._mpi.MAX))

    def wait(self) -> None:
        """Wait for all ranks."""
        self._comm.Barrier()

    def _reduce(self, numbers: NDArray[Any], datatype: Any, op: Any) -> None:
        step = max(1, self._max_bytes // numbers.itemsize)
        for start in range(0, len(numbers), step):
            self._comm.Allreduce(self._mpi.IN_PLACE, [numbers[start : start + step], datatype], op=op)

    def close(self) -> None:
        """Free the operations."""
        self._half_op.Free()
        self._bfloat16_op.Free()


def library_sums_half(world: World) -> bool:
    """Whether this rank's library sums float16 itself, as MPI.FLOAT16_T."""
    mpi = world.mpi
    kind = getattr(mpi, "FLOAT16_T", mpi.DATATYPE_NULL)
    if kind == mpi.DATATYPE_NULL:
        return False
    term, total = np.full(4, 1.5, np.float16), np.full(4, 2.25, np.float16)
    try:
        mpi.SUM.Reduce_local([term, kind], [total, kind])
    except mpi.Exception:
        return False
    return bool((total == 3.75).all())


def plain_mean(world: World, dtype: Any) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """The mean over the ranks as most programs write it: cast by NumPy, MPI_Allreduce, cast back, divide.

    The yardstick of ``dist-mp bench allreduce``. `dtype` is float32, or float16 where
    :func:`library_sums_half`.
    """
    mpi, comm = world.mpi, world.comm
    kind = mpi.FLOAT if np.dtype(dtype) == np.float32 else mpi.FLOAT16_T

    def mean(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        send = gradient.astype(dtype)
        total = np.empty_like(send)
        comm.Allreduce([send, kind], [total, kind], op=mpi.SUM)
        return total.astype(np.float32) / np.float32(world.size)

    return mean
