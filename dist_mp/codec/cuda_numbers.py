"""CUDA kernels of fp32, fp16 and bf16, and what all kernels share, for `numba.cuda`, bit for bit like the CPU.

Numba compiles a kernel at its first call, and needs a device then, or its simulator. Whole numbers are int64
throughout, so that no operation overflows or changes its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config, cuda
from numba.cuda import libdevice

Kernel = Any
Load = Callable[[Any, Any], Any]


class WidenKernels:
    """Device functions that read and write single numbers by their bits."""

    def __init__(self) -> None:
        """Make the functions."""

        @cuda.jit(device=True)
        def bits_of(x: Any) -> Any:
            return np.int64(np.float32(x).view(np.uint32))

        @cuda.jit(device=True)
        def of_bits(bits: Any) -> Any:
            return np.uint32(bits).view(np.float32)

        @cuda.jit(device=True)
        def load_float(values: Any, i: Any) -> Any:
            return np.float32(values[i])

        @cuda.jit(device=True)
        def load_bfloat16(values: Any, i: Any) -> Any:
            return of_bits(np.int64(values[i]) << 16)

        @cuda.jit(device=True)
        def product_in_python(x: Any, y: Any) -> Any:
            return np.float32(x) * np.float32(y)

        # NVVM would fuse the product with the sum that follows, which rounds otherwise than the CPU. The simulator
        # lacks this function and fuses nothing.
        product = product_in_python if config.ENABLE_CUDASIM else libdevice.fmul_rn

        @cuda.jit(device=True)
        def least(x: Any, y: Any) -> Any:
            return x if x < y else y

        @cuda.jit(device=True)
        def most(x: Any, y: Any) -> Any:
            return x if x > y else y

        self.bits_of, self.of_bits, self.product = bits_of, of_bits, product
        self.least, self.most = least, most
        self.load: dict[bool, Load] = {False: load_float, True: load_bfloat16}
        """Reads a number as float32, by whether the array holds the bits of bfloat16."""


class FloatKernels:
    """fp32, fp16, bf16."""

    def __init__(self, name: str) -> None:
        """Make the kernels for the type on the wire."""
        widen = WidenKernels()
        load = widen.load[name == "bf16"]
        self.encode = {bfloat16: self._encode(name, widen, bfloat16) for bfloat16 in (False, True)}
        """Kernels (values, numbers), by whether the values are the bits of bfloat16."""
        self.decode = self._decode(load, widen.product)
        """A kernel (numbers, out, scale)."""
        self.add = self._add(load, widen.product)
        """A kernel (rows of numbers, weights, out)."""

    def _encode(self, name: str, widen: WidenKernels, bfloat16: bool) -> Kernel:
        load, bits_of = widen.load[bfloat16], widen.bits_of
        if name == "bf16":

            @cuda.jit
            def encode(values: Any, out: Any) -> None:
                i = cuda.grid(1)
                if i < values.size:
                    bits = bits_of(load(values, i))
                    if bits & 0x7FFFFFFF > 0x7F800000:
                        out[i] = bits >> 16 | 0x40
                    else:
                        out[i] = bits + 0x7FFF + (bits >> 16 & 1) >> 16 & 0xFFFF

        else:

            @cuda.jit
            def encode(values: Any, out: Any) -> None:
                i = cuda.grid(1)
                if i < values.size:
                    out[i] = load(values, i)

        return encode

    def _decode(self, load: Load, product: Any) -> Kernel:
        @cuda.jit
        def decode(numbers: Any, out: Any, scale: Any) -> None:
            i = cuda.grid(1)
            if i < out.size:
                out[i] = product(load(numbers, i), scale)

        return decode

    def _add(self, load: Load, product: Any) -> Kernel:
        @cuda.jit
        def add(rows: Any, weights: Any, out: Any) -> None:
            i = cuda.grid(1)
            if i < out.size:
                total = product(load(rows[0], i), weights[0])
                for r in range(1, weights.size):
                    total = total + product(load(rows[r], i), weights[r])
                out[i] = total

        return add
