"""Error feedback of gradients on a GPU, with the bits of :mod:`dist_mp.codec.feedback`, of which it keeps the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from dist_mp.codec.cuda import cuda_codec
from dist_mp.codec.cuda_device import CudaDevice
from dist_mp.codec.cuda_numbers import WidenKernels
from dist_mp.codec.feedback import ErrorFeedback
from dist_mp.exchange.compensation import Compensation
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec


class FeedbackKernels:
    """Sum with the residual, and what is left of it."""

    def __init__(self) -> None:
        """Make the kernels."""
        widen = WidenKernels()
        self.add = {bfloat16: self._add(load, widen.product) for bfloat16, load in widen.load.items()}
        """Kernels (values, residual, loss scale, out), by whether the values are the bits of bfloat16."""
        product = widen.product

        @cuda.jit
        def difference(compensated: Any, decoded: Any, unscale: Any, out: Any) -> None:
            i = cuda.grid(1)
            if i < out.size:
                out[i] = product(compensated[i] - decoded[i], unscale)

        self.difference: Any = difference
        """A kernel (compensated, decoded, 1 / loss scale, out)."""

    def _add(self, load: Any, product: Any) -> Any:
        @cuda.jit
        def add(values: Any, residual: Any, loss_scale: Any, out: Any) -> None:
            i = cuda.grid(1)
            if i < out.size:
                out[i] = load(values, i) + product(residual[i], loss_scale)

        return add


class DeviceFeedback(ErrorFeedback):
    """Residuals on the device; see :class:`dist_mp.codec.feedback.ErrorFeedback` for when they take effect."""

    def __init__(self, sizes: Sequence[int], device: CudaDevice) -> None:
        """Start with residuals of 0."""
        self._device = device
        self._sizes = list(sizes)
        self._residuals: list[Any] = [device.from_host(np.zeros(n, np.float32)) for n in sizes]
        self._next: list[Any] = [device.empty(n, np.float32) for n in sizes]
        self._pending = [False] * len(self._sizes)
        self._kernels = FeedbackKernels()

    def keep(self, index: int, values: Any, kernels: Any, wire: Any, compensated: Any, loss_scale: float) -> None:
        """Write the gradient plus its residual into `compensated`, encode it, and keep the error as pending."""
        residual, error, stream = self._residuals[index], self._next[index], self._device.stream
        grid = self._device.grid(compensated.size)
        self._kernels.add[values.dtype == np.uint16][grid](values, residual, np.float32(loss_scale), compensated)
        kernels.encode(compensated, wire, stream)
        kernels.decode(wire, error, stream=stream)
        self._kernels.difference[grid](compensated, error, np.float32(1 / loss_scale), error)
        self._pending[index] = True

    def state(self) -> list[NDArray[np.float32]]:
        """Copies of the committed residuals in host memory, for a checkpoint."""
        with self._device.active():
            self._device.stream.synchronize()
            return [r.copy_to_host()[:n] for r, n in zip(self._residuals, self._sizes, strict=True)]

    def load(self, residuals: Sequence[NDArray[np.float32]]) -> None:
        """Take the residuals of a checkpoint, from host memory; nothing is pending afterwards."""
        sizes = [len(r) for r in residuals]
        if sizes != self._sizes:
            raise ValueError(f"residuals of {sizes} numbers for gradients of {self._sizes}")
        self._device.stream.synchronize()
        self._residuals = [self._device.from_host(np.ascontiguousarray(r, np.float32)) for r in residuals]
        self.discard()


class DeviceCompensation(Compensation):
    """Error feedback of gradients on a GPU."""

    def __init__(self, seeded: SeededCodec, buckets: Sequence[Bucket], device: CudaDevice) -> None:
        """Allocate for the gradients of these buckets."""
        super().__init__(buckets)
        self._residuals = self.feedback = DeviceFeedback(self._numels, device)
        self._seeded, self._device = seeded, device
        with device.active():
            self._kernels = cuda_codec(seeded.codec, device.threads)
        self._wire = device.empty(seeded.codec.wire_bytes(max(self._numels, default=0)), np.uint8)
        self._sums = device.empty(self._longest, np.float32)

    def add(self, bucket: Bucket, sources: Sequence[Any], loss_scale: float) -> list[Any]:
        """The gradients of a bucket with their residuals, until the next call."""
        with self._device.active():
            return self._add(bucket, sources, loss_scale)

    def _add(self, bucket: Bucket, sources: Sequence[Any], loss_scale: float) -> list[Any]:
        sums = []
        for slot, source in zip(bucket.slots, sources, strict=True):
            if not slot.numel:
                sums.append(source)
                continue
            codec = self._seeded.own(slot.offset)
            wire = self._wire[: codec.wire_bytes(slot.numel)]
            total = self._sums[slot.offset : slot.offset + slot.numel]
            kernels = self._kernels.seeded(codec)
            self._residuals.keep(self._place[slot.index], source, kernels, wire, total, loss_scale)
            sums.append(total)
        return sums
