"""The codecs on a CUDA device: the same bytes as on the CPU, from and to arrays that stay on the device.

Kernels are compiled at the first call, for the types that they meet. One block of threads treats one block of a codec.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from dist_mp.codec.base import Codec
from dist_mp.codec.block import BlockCodec
from dist_mp.codec.cuda_kernels import BlockKernels, OneBitKernels
from dist_mp.codec.cuda_numbers import FloatKernels
from dist_mp.codec.half import FloatCodec
from dist_mp.codec.one_bit import OneBitCodec

THREADS = 128


class CudaCodec(ABC):
    """Encodes, decodes and sums device arrays (`numba.cuda`, or what its `as_cuda_array` makes of others).

    Numbers are float32, float16, or uint16 that hold the bits of bfloat16; wires are uint8. All arrays are
    one-dimensional, but for `wires`. Calls are queued on `stream` and return at once; from the second call with the
    same sizes on they allocate nothing. All calls of one codec go to the same stream.
    """

    def __init__(self, codec: Codec, threads: int) -> None:
        """Take the CPU codec and the threads of a block."""
        self.codec = codec
        self._threads = threads
        self._kept: dict[tuple[Any, ...], Any] = {}

    def seeded(self, codec: Codec) -> CudaCodec:
        """The same kernels for `codec`, which is this one with other random numbers, or another block."""
        if codec is self.codec:
            return self
        other = copy(self)
        other.codec = codec
        return other

    @abstractmethod
    def encode(self, values: Any, wire: Any, stream: Any = 0) -> None:
        """Write the codes of `values` into `wire`."""

    @abstractmethod
    def decode(self, wire: Any, out: Any, scale: float = 1.0, stream: Any = 0) -> None:
        """Write ``scale * value`` of each code into `out` (float32)."""

    @abstractmethod
    def reduce(self, wires: Any, weights: Sequence[float], out: Any, scratch: Any, stream: Any = 0) -> None:
        """Encode the weighted FP32 sum of the rows of `wires`, in their order, into `out`.

        `scratch` is float32 and as long as the numbers of a row; it holds the sum afterwards.
        """

    def _weights(self, weights: Sequence[float]) -> Any:
        return self._constant(np.array(weights, np.float32))

    def _constant(self, numbers: NDArray[Any]) -> Any:
        """These numbers on the device."""
        key = (numbers.dtype.char, *numbers.tolist())
        if key not in self._kept:
            self._kept[key] = cuda.to_device(numbers)
        return self._kept[key]

    def _room(self, n: int) -> Any:
        """Room for n int32 numbers, until the next call."""
        key = ("room", n)
        if key not in self._kept:
            self._kept[key] = cuda.device_array(n, np.int32)
        return self._kept[key]

    def _blocks(self, n: int) -> int:
        return max(1, -(-n // self._threads))


class CudaFloat(CudaCodec):
    """fp32, fp16 and bf16 on the device."""

    def __init__(self, codec: FloatCodec, threads: int) -> None:
        """Prepare the kernels of the wire's type."""
        super().__init__(codec, threads)
        self._kernels = FloatKernels(codec.name)
        self._dtype = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16}[codec.name]

    def encode(self, values: Any, wire: Any, stream: Any = 0) -> None:
        """Round each number to the wire's type."""
        n = values.size
        if n:
            kernel = self._kernels.encode[values.dtype == np.uint16]
            kernel[self._blocks(n), self._threads, stream](values, wire.view(self._dtype))

    def decode(self, wire: Any, out: Any, scale: float = 1.0, stream: Any = 0) -> None:
        """Widen each number to FP32 and multiply."""
        if out.size:
            grid = self._blocks(out.size), self._threads, stream
            self._kernels.decode[grid](wire.view(self._dtype), out, np.float32(scale))

    def reduce(self, wires: Any, weights: Sequence[float], out: Any, scratch: Any, stream: Any = 0) -> None:
        """Sum in FP32, round once."""
        n = scratch.size
        if n:
            grid = self._blocks(n), self._threads, stream
            self._kernels.add[grid](wires.view(self._dtype), self._weights(weights), scratch)
            self.encode(scratch, out, stream)


class CudaBlock(CudaCodec):
    """The 8-bit code books on the device."""

    def __init__(self, codec: BlockCodec, threads: int) -> None:
        """Copy the tables to the device."""
        super().__init__(codec, threads)
        book = codec.book
        bounds = np.full(128, np.inf, np.float32)
        bounds[: len(book.bounds)] = book.bounds
        signed = np.concatenate([book.table(), -book.table()])
        if book.top is not None:
            signed[128] = book.top
        self._has_top = book.top is not None
        self._exponent = book.exponent or 0
        self._bounds, self._signed = cuda.to_device(bounds), cuda.to_device(signed)
        self._steps = cuda.to_device(np.concatenate([book.table(), book.following()]))
        self._kernels = BlockKernels(threads)

    @property
    def _layout(self) -> BlockCodec:
        assert isinstance(self.codec, BlockCodec)
        return self.codec

    def encode(self, values: Any, wire: Any, stream: Any = 0) -> None:
        """Write the scales and codes."""
        n, codec = values.size, self._layout
        if not n:
            return
        bfloat16 = values.dtype == np.uint16
        zeros = self._constant(np.zeros(2, np.int32))
        largest = self._room(2) if codec.whole else zeros
        if codec.whole:
            largest.copy_to_device(zeros, stream=stream)
            self._kernels.largest[bfloat16][self._blocks(n), self._threads, stream](values, largest)
        seed = 0 if codec.seed is None else codec.seed
        self._kernels.encode[bfloat16][-(-n // codec.block), self._threads, stream](
            values,
            wire,
            codec.block,
            codec.whole,
            largest,
            self._exponent,
            self._bounds,
            self._has_top,
            codec.seed is not None,
            self._steps,
            seed & 0xFFFFFFFF,
            seed >> 32,
            codec.start,
        )

    def decode(self, wire: Any, out: Any, scale: float = 1.0, stream: Any = 0) -> None:
        """Write what each code stands for, times its block's scale times `scale`."""
        self._sum(wire.reshape(1, wire.size), [scale], out, stream)

    def reduce(self, wires: Any, weights: Sequence[float], out: Any, scratch: Any, stream: Any = 0) -> None:
        """Sum in FP32, then encode with new scales."""
        self._sum(wires, weights, scratch, stream)
        self.encode(scratch, out, stream)

    def _sum(self, wires: Any, weights: Sequence[float], out: Any, stream: Any) -> None:
        if out.size:
            grid = -(-out.size // self._layout.block), self._threads, stream
            self._kernels.add[grid](wires, self._weights(weights), out, self._layout.block, self._signed)


class CudaOneBit(CudaCodec):
    """One bit a number on the device."""

    def __init__(self, codec: OneBitCodec, threads: int) -> None:
        """Prepare the kernels."""
        super().__init__(codec, threads)
        self._kernels = OneBitKernels()

    def encode(self, values: Any, wire: Any, stream: Any = 0) -> None:
        """Write counts, means and signs."""
        block = self.codec.block
        blocks = -(-values.size // block)
        if blocks:
            self._encode(values, wire, self._counts(values.size, blocks), stream)

    def _counts(self, n: int, blocks: int) -> Any:
        """How many of n numbers each block has."""
        key = ("counts", n, self.codec.block)
        if key not in self._kept:
            counts = np.minimum(self.codec.block, n - self.codec.block * np.arange(blocks))
            self._kept[key] = cuda.to_device(counts.astype(np.int32))
        return self._kept[key]

    def _encode(self, values: Any, wire: Any, counts: Any, stream: Any) -> None:
        grid = counts.size, self._threads, stream
        self._kernels.encode[values.dtype == np.uint16][grid](values, wire, self.codec.block, counts)

    def decode(self, wire: Any, out: Any, scale: float = 1.0, stream: Any = 0) -> None:
        """Write the mean of each number's sign, times `scale`."""
        self._sum(wire.reshape(1, wire.size), [scale], out, stream)

    def reduce(self, wires: Any, weights: Sequence[float], out: Any, scratch: Any, stream: Any = 0) -> None:
        """Sum in FP32, then encode with new means."""
        counts = self._sum(wires, weights, scratch, stream)
        if counts is not None:
            self._encode(scratch, out, counts, stream)

    def _sum(self, wires: Any, weights: Sequence[float], out: Any, stream: Any) -> Any:
        blocks = -(-out.size // self.codec.block)
        if not blocks:
            return None
        counts = self._room(blocks)
        grid = blocks, self._threads, stream
        self._kernels.add[grid](wires, self._weights(weights), out, self.codec.block, counts)
        return counts


def cuda_codec(codec: Codec, threads: int = THREADS) -> CudaCodec:
    """The CUDA kernels of a codec. Needs a device, or NUMBA_ENABLE_CUDASIM=1.

    Args:
        codec: from :func:`dist_mp.codec.table.codec_by_name`, also a seeded one.
        threads: of a block; a power of two from 16.
    """
    if isinstance(codec, FloatCodec):
        return CudaFloat(codec, threads)
    if isinstance(codec, BlockCodec):
        return CudaBlock(codec, threads)
    if isinstance(codec, OneBitCodec):
        return CudaOneBit(codec, threads)
    raise ValueError(f"no CUDA kernels for codec {codec.name}")
