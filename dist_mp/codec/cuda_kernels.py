"""CUDA kernels of the 8-bit code books and of one bit, for `numba.cuda`, bit for bit like the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from dist_mp.codec.block_kernels import NAN, NOT_FINITE, SCALE_BYTES, SMALLEST_SCALE
from dist_mp.codec.cuda_numbers import Kernel, Load, WidenKernels
from dist_mp.codec.one_bit import HEADER, LANES
from dist_mp.codec.rounding import FIRST, SECOND


class BlockKernels:
    """8-bit code books with a scale for each block."""

    def __init__(self, threads: int) -> None:
        """Make the kernels for blocks of so many threads."""
        self._threads, self._widen = threads, WidenKernels()
        of_bits, product, least = self._widen.of_bits, self._widen.product, self._widen.least

        @cuda.jit
        def add(wires: Any, weights: Any, out: Any, block: Any, signed: Any) -> None:
            start = cuda.blockIdx.x * block
            at = cuda.blockIdx.x * (block + SCALE_BYTES)
            for i in range(cuda.threadIdx.x, least(block, out.size - start), cuda.blockDim.x):
                total = np.float32(0)
                for r in range(weights.size):
                    bits = np.int64(0)
                    for k in range(SCALE_BYTES):
                        bits |= np.int64(wires[r, at + k]) << (8 * k)
                    factor = product(of_bits(bits), weights[r])
                    term = product(signed[wires[r, at + SCALE_BYTES + i]], factor)
                    total = term if r == 0 else total + term
                out[start + i] = total

        self.add: Kernel = add
        """A kernel (rows of wires, weights, out, block, signed magnitudes by byte)."""
        self.largest = {bfloat16: self._largest(load) for bfloat16, load in self._widen.load.items()}
        """Kernels (values, [largest magnitude, largest number]), both by their bits, which must start at 0."""
        self.encode = {bfloat16: self._encode(load) for bfloat16, load in self._widen.load.items()}
        """Kernels that encode one block of numbers in one block of threads."""

    def _largest(self, load: Load) -> Kernel:
        bits_of = self._widen.bits_of

        @cuda.jit
        def largest(values: Any, result: Any) -> None:
            i = cuda.grid(1)
            if i < values.size:
                bits = bits_of(load(values, i))
                cuda.atomic.max(result, 0, np.int32(bits & 0x7FFFFFFF))
                if bits < 0x80000000:
                    cuda.atomic.max(result, 1, np.int32(bits))

        return largest

    def _encode(self, load: Load) -> Kernel:
        threads, widen = self._threads, self._widen
        bits_of, of_bits, least, most = widen.bits_of, widen.of_bits, widen.least, widen.most
        nearest, random = self._nearest(), self._random()

        @cuda.jit
        def encode(
            values: Any,
            wire: Any,
            block: Any,
            whole: Any,
            largest_of_all: Any,
            exponent: Any,
            bounds: Any,
            has_top: Any,
            stochastic: Any,
            steps: Any,
            low_seed: Any,
            high_seed: Any,
            position: Any,
        ) -> None:
            thread = cuda.threadIdx.x
            start = cuda.blockIdx.x * block
            n = least(block, values.size - start)
            at = cuda.blockIdx.x * (block + SCALE_BYTES)
            magnitude = cuda.shared.array(threads, np.int32)
            number = cuda.shared.array(threads, np.int32)
            largest, highest = np.int64(largest_of_all[0]), np.int64(largest_of_all[1])
            if not whole:
                for i in range(thread, n, threads):
                    bits = bits_of(load(values, start + i))
                    largest = most(largest, bits & 0x7FFFFFFF)
                    if bits < 0x80000000:
                        highest = most(highest, bits)
                magnitude[thread], number[thread] = largest, highest
                cuda.syncthreads()
                half = threads // 2
                while half > 0:
                    if thread < half:
                        magnitude[thread] = most(magnitude[thread], magnitude[thread + half])
                        number[thread] = most(number[thread], number[thread + half])
                    cuda.syncthreads()
                    half //= 2
                largest, highest = np.int64(magnitude[0]), np.int64(number[0])
            finite = largest < NOT_FINITE
            scale_bits = np.int64(NAN)
            if finite:
                scale_bits = largest
                if exponent != 0:
                    scale_bits = (largest + 0x1FFFFF & NOT_FINITE) - (exponent << 23)
                scale_bits = most(scale_bits, np.int64(SMALLEST_SCALE))
                if has_top and highest != largest:
                    scale_bits |= 0x80000000
            for k in range(thread, SCALE_BYTES, threads):
                wire[at + k] = scale_bits >> (8 * k) & 0xFF
            scale = of_bits(scale_bits)
            for i in range(thread, n, threads):
                code = np.int64(0)
                if finite:
                    x = load(values, start + i) / scale
                    negative = bits_of(x) >> 31
                    x = abs(x)
                    if stochastic:
                        code = random(x, negative, steps, has_top, position + start + i, low_seed, high_seed)
                    else:
                        code = nearest(x, negative, bounds, has_top)
                wire[at + SCALE_BYTES + i] = code

        return encode

    def _nearest(self) -> Any:
        @cuda.jit(device=True)
        def nearest(x: Any, negative: Any, bounds: Any, has_top: Any) -> Any:
            code, bit = np.int64(0), np.int64(64)
            while bit > 0:
                if x >= bounds[code + bit - 1]:
                    code += bit
                bit >>= 1
            if has_top and code == 0:
                return np.int64(0)
            if has_top and negative == 0 and x >= bounds[127]:
                return np.int64(128)
            return code | negative << 7

        return nearest

    def _random(self) -> Any:
        least = self._widen.least

        @cuda.jit(device=True)
        def random(
            x: Any, negative: Any, steps: Any, has_top: Any, position: Any, low_seed: Any, high_seed: Any
        ) -> Any:
            if has_top and negative:
                x = least(x, steps[127])
            code, bit = np.int64(0), np.int64(64)
            while bit > 0:
                # Codes beyond the largest magnitude repeat it; they must not be found.
                if x >= steps[code + bit] and steps[code + bit] > steps[code + bit - 1]:
                    code += bit
                bit >>= 1
            h = position & 0xFFFFFFFF ^ low_seed
            h = (h ^ h >> 16) * FIRST & 0xFFFFFFFF
            h = ((h ^ h >> 15) + high_seed & 0xFFFFFFFF) * SECOND & 0xFFFFFFFF
            h = h ^ h >> 15
            u = np.float32(h >> 8) * np.float32(2.0**-24)
            low, high = steps[code], steps[128 + code]
            if u * (high - low) < x - low:
                code += 1
            if has_top and code == 0:
                return np.int64(0)
            return code + (negative << 7)

        return random


class OneBitKernels:
    """Signs, with the means of the negative and of the other numbers of a block."""

    def __init__(self) -> None:
        """Make the kernels."""
        self._widen = WidenKernels()
        of_bits, product = self._widen.of_bits, self._widen.product
        least, most = self._widen.least, self._widen.most

        @cuda.jit
        def add(wires: Any, weights: Any, out: Any, block: Any, counts: Any) -> None:
            start = cuda.blockIdx.x * block
            at = cuda.blockIdx.x * (HEADER + block // 8)
            size = least(block, out.size - start)
            for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
                total, largest = np.float32(0), np.int64(0)
                for r in range(weights.size):
                    count, byte = np.int64(0), np.int64(wires[r, at + HEADER + i // 8])
                    mean = 4 if byte >> (i % 8) & 1 else 8
                    bits = np.int64(0)
                    for k in range(4):
                        count |= np.int64(wires[r, at + k]) << (8 * k)
                        bits |= np.int64(wires[r, at + mean + k]) << (8 * k)
                    largest = most(largest, count)
                    if i < count:
                        term = product(of_bits(bits), weights[r])
                        total = term if r == 0 else total + term
                out[start + i] = total
                if i == 0:
                    counts[cuda.blockIdx.x] = least(largest, size)

        self.add: Kernel = add
        """A kernel (rows of wires, weights, out, block, counts of the blocks)."""
        self.encode = {bfloat16: self._encode(load) for bfloat16, load in self._widen.load.items()}
        """Kernels (values, wire, block, counts), with at least 16 threads a block."""

    def _encode(self, load: Load) -> Kernel:
        bits_of, least, most = self._widen.bits_of, self._widen.least, self._widen.most

        @cuda.jit
        def encode(values: Any, wire: Any, block: Any, counts: Any) -> None:
            thread = cuda.threadIdx.x
            start = cuda.blockIdx.x * block
            n: Any = np.int64(counts[cuda.blockIdx.x])
            at = cuda.blockIdx.x * (HEADER + block // 8)
            below = cuda.shared.array(LANES, np.float64)
            above = cuda.shared.array(LANES, np.float64)
            negative = cuda.shared.array(LANES, np.int64)
            if thread < LANES:
                below[thread], above[thread], negative[thread] = 0.0, 0.0, 0
                for i in range(thread, n, LANES):
                    x = np.float64(load(values, start + i))
                    if x < 0:
                        below[thread] += x
                        negative[thread] += 1
                    else:
                        above[thread] += x
            cuda.syncthreads()
            if thread == 0:
                low, high = 0.0, 0.0
                count: Any = np.int64(0)
                for lane in range(LANES):
                    low += below[lane]
                    high += above[lane]
                    count += negative[lane]
                low_bits = bits_of(np.float32(low / most(count, 1)))
                high_bits = bits_of(np.float32(high / most(n - count, 1)))
                for k in range(4):
                    wire[at + k] = n >> (8 * k) & 0xFF
                    wire[at + 4 + k] = low_bits >> (8 * k) & 0xFF
                    wire[at + 8 + k] = high_bits >> (8 * k) & 0xFF
            room = (least(block, values.size - start) + 7) // 8
            for k in range(thread, room, cuda.blockDim.x):
                byte = np.int64(0)
                for bit in range(least(8, n - 8 * k)):
                    if load(values, start + 8 * k + bit) < 0:
                        byte |= 1 << bit
                wire[at + HEADER + k] = byte

        return encode
