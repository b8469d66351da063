"""Floating-point types on the wire, fp32, fp16 and bf16, as compiled kernels that run at the speed of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.codec.numbers import element, kernel_view, narrow, widen

CHUNK = 2048
"""Numbers that a sum over many wires treats at a time, so that its FP32 scratch stays in the first-level cache."""


@njit(nogil=True, cache=True)
def convert(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Each number in the type of `out`."""
    like = out.dtype.type(0)
    for i in range(values.size):
        out[i] = narrow(widen(values[i]), like)


@njit(nogil=True, cache=True)
def convert_scaled(values: NDArray[Any], out: NDArray[np.float32], scale: np.float32) -> None:
    """FP32 of each number, times `scale`."""
    for i in range(values.size):
        out[i] = widen(values[i]) * scale


@njit(nogil=True, cache=True)
def reduce_two(
    first: NDArray[Any], second: NDArray[Any], w_first: np.float32, w_second: np.float32, out: NDArray[Any]
) -> None:
    """Weighted sum of two arrays in FP32, rounded once."""
    like = out.dtype.type(0)
    for i in range(out.size):
        out[i] = narrow(widen(first[i]) * w_first + widen(second[i]) * w_second, like)


@njit(nogil=True, cache=True)
def reduce_many(
    addresses: NDArray[np.uint64], weights: NDArray[np.float32], out: NDArray[Any], scratch: NDArray[np.float32]
) -> None:
    """Weighted sum of the arrays at `addresses`, like `out` in type and length, in FP32 and in order, rounded once."""
    like = out.dtype.type(0)
    for start in range(0, out.size, CHUNK):
        part = out[start : start + CHUNK]
        total = scratch[: part.size]
        _set_to_product(total, addresses[0] + np.uint64(start * out.itemsize), weights[0], like)
        for r in range(1, addresses.size):
            _add_product(total, addresses[r] + np.uint64(start * out.itemsize), weights[r], like)
        convert(total, part)


@njit(nogil=True, cache=True)
def _set_to_product(total: NDArray[np.float32], address: np.uint64, weight: np.float32, like: Any) -> None:
    for i in range(total.size):
        total[i] = widen(element(address, i, like)) * weight


@njit(nogil=True, cache=True)
def _add_product(total: NDArray[np.float32], address: np.uint64, weight: np.float32, like: Any) -> None:
    for i in range(total.size):
        total[i] += widen(element(address, i, like)) * weight


@njit(nogil=True, cache=True)
def add_into(values: NDArray[Any], total: NDArray[Any]) -> None:
    """Add arrays of one type: in FP32, each sum rounded to the type."""
    like = total.dtype.type(0)
    for i in range(total.size):
        total[i] = narrow(widen(total[i]) + widen(values[i]), like)


@njit(nogil=True, cache=True)
def largest_half(codes: NDArray[np.uint16]) -> float:
    """The largest magnitude of float16 numbers; infinity if any of them is not finite."""
    largest = 0
    for i in range(codes.size):
        largest = max(largest, codes[i] & 0x7FFF)
    return np.inf if largest >= 0x7C00 else widen(np.uint16(largest))


class FloatCodec(Codec):
    """A floating-point type on the wire: fp32, fp16 or bf16, rounded to nearest, ties to even.

    Denormals are kept, what lies beyond the largest number becomes infinity, NaN stays NaN.
    """

    def __init__(self, name: str, dtype: Any) -> None:
        """Name the codec and the type of a number on the wire (float32, float16 or ml_dtypes.bfloat16)."""
        self.name = name
        self.dtype = np.dtype(dtype)

    def wire_bytes(self, n: int) -> int:
        """Bytes on the wire for n numbers."""
        return n * self.dtype.itemsize

    def encode(self, values: NDArray[Any], wire: Wire) -> None:
        """Round each number to the wire's type; numbers of that type are copied as they are."""
        numbers = wire.view(self.dtype)
        if values.dtype == self.dtype:
            numbers[:] = values
        else:
            convert(kernel_view(values), kernel_view(numbers))

    def decode(self, wire: Wire, out: NDArray[np.float32], scale: float = 1.0) -> None:
        """Widen each number to FP32 and multiply."""
        numbers = wire.view(self.dtype)
        if scale == 1.0 and self.dtype == np.float32:
            out[:] = numbers
        else:
            convert_scaled(kernel_view(numbers), out, np.float32(scale))

    def reduce(self, wires: Sequence[Wire], weights: Sequence[float], out: Wire, scratch: NDArray[np.float32]) -> None:
        """Sum weight * number in FP32 in the order of the wires, then round once."""
        result = kernel_view(out.view(self.dtype))
        if len(wires) == 2:
            first, second = (kernel_view(w.view(self.dtype)) for w in wires)
            reduce_two(first, second, np.float32(weights[0]), np.float32(weights[1]), result)
        elif result.size:
            addresses = np.array([w.ctypes.data for w in wires], np.uint64)
            reduce_many(addresses, np.array(weights, np.float32), result, scratch)
