"""NumPy statements of the codecs, which every kernel must match bit for bit. Slow on purpose: they are to be read."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.codec.block import DEFAULT_BLOCK, WHOLE_BLOCK
from dist_mp.codec.book import CodeBook
from dist_mp.codec.dettmers import ZERO_BELOW, dynamic_tree, linear, mantissa, static_tree
from dist_mp.codec.dynamic_map import dynamic_uniform
from dist_mp.codec.fp8 import fp8_e4m3, fp8_e5m2
from dist_mp.codec.rounding import uniform


class ReferenceFloat(Codec):
    """A floating-point type on the wire. NumPy and ml_dtypes round to nearest, ties to even."""

    def __init__(self, name: str, dtype: Any) -> None:
        """Name the codec and the type of a number on the wire."""
        self.name = name
        self.dtype = np.dtype(dtype)

    def wire_bytes(self, n: int) -> int:
        """Bytes on the wire for n numbers."""
        return n * self.dtype.itemsize

    def encode(self, values: NDArray[Any], wire: Wire) -> None:
        """Round each number to the wire's type."""
        with np.errstate(over="ignore", invalid="ignore"):
            wire[:] = values.astype(np.float32).astype(self.dtype).view(np.uint8)

    def decode(self, wire: Wire, out: NDArray[np.float32], scale: float = 1.0) -> None:
        """Widen each number to FP32 and multiply."""
        with np.errstate(over="ignore", invalid="ignore"):
            out[:] = wire.view(self.dtype).astype(np.float32) * np.float32(scale)

    def reduce(self, wires: Sequence[Wire], weights: Sequence[float], out: Wire, scratch: NDArray[np.float32]) -> None:
        """Sum weight * number in FP32 in the order of the wires, then round once."""
        self.encode(weighted_sum(self, wires, weights, len(scratch)), out)


def weighted_sum(codec: Codec, wires: Sequence[Wire], weights: Sequence[float], n: int) -> NDArray[np.float32]:
    """The FP32 sum that :meth:`Codec.reduce` encodes: products rounded, then added from the first wire to the last."""
    total = np.empty(n, np.float32)
    term = np.empty(n, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for r, (wire, weight) in enumerate(zip(wires, weights, strict=True)):
            codec.decode(wire, term, weight)
            total[:] = term if r == 0 else total + term
    return total


class ReferenceBlock(Codec):
    """An 8-bit code book with one FP32 scale for each block: scale, codes, scale, codes, ...

    A number x has the code of the magnitude nearest to ``|x| / scale``, a float32 quotient; halfway it is the larger
    one. If a number of the block is not finite, its scale is NaN and its codes are 0.
    """

    def __init__(self, name: str, book: CodeBook, block: int) -> None:
        """Name the codec, its book and the numbers that share a scale; 0: all numbers of a call."""
        self.name, self.book = name, book
        self.block, self.whole = block or WHOLE_BLOCK, block == 0
        self.seed: int | None = None
        self.start = 0

    def seeded(self, seed: int, start: int = 0) -> ReferenceBlock:
        """Rounds at random; `start` is the place of the first number in its buffer."""
        other = copy(self)
        other.seed, other.start = seed, start
        return other

    def wire_bytes(self, n: int) -> int:
        """Bytes on the wire for n numbers."""
        return n + 4 * -(-n // self.block)

    def scale(self, values: NDArray[np.float32]) -> np.float32:
        """The largest magnitude, but at least 2**-126, with the sign of the number if only positive codes reach it."""
        if not np.isfinite(values).all():
            return np.float32(np.nan)
        largest = np.abs(values).max(initial=np.float32(0))
        scale = max(np.float32(2.0**-126), largest)
        return -scale if self.book.top is not None and largest not in values else scale

    def codes(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The nearest codes of scaled numbers."""
        magnitude = np.abs(x).astype(np.float64)
        book = self.book.magnitudes.astype(np.float64)
        if self.book.top is not None:
            book = np.append(book, self.book.top)
        # How many of the midpoints between neighbours, which are exact in float64, the magnitude reaches.
        code = np.searchsorted((book[:-1] + book[1:]) / 2, magnitude, side="right")
        if self.book.top is None:
            return (code + 128 * np.signbit(x)).astype(np.uint8)
        # No code has the top's magnitude and a minus, and zero has no sign; 128 is the top.
        negative = np.signbit(x) & (code > 0)
        return np.where(negative, np.minimum(code, 127) + 128, code).astype(np.uint8)

    def random_codes(self, x: NDArray[np.float32], random: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The code below or above; above if the random number is less than the part of the step that x has gone."""
        book, negative, magnitude = self.book.magnitudes, np.signbit(x), np.abs(x)
        if self.book.top is not None:
            magnitude = np.where(negative, np.minimum(magnitude, book[-1]), magnitude)
        below = np.searchsorted(book, magnitude, side="right") - 1
        low, high = book[below], self.book.following()[below]
        code = below + (random * (high - low) < magnitude - low)
        sign = 128 * (negative & (code > 0)) if self.book.top is not None else 128 * negative
        return (code + sign).astype(np.uint8)

    def _positions(self, start: int, n: int) -> NDArray[np.uint32]:
        return (self.start + start + np.arange(n, dtype=np.int64)).astype(np.uint32)

    def magnitudes(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What codes stand for, with their sign."""
        book = np.pad(self.book.magnitudes, (0, 128 - len(self.book.magnitudes)), mode="edge")
        signed = np.concatenate([book, -book])
        if self.book.top is not None:
            signed[128] = self.book.top
        return signed[codes]

    def encode(self, values: NDArray[Any], wire: Wire) -> None:
        """Write scale and codes of each block."""
        x = values.astype(np.float32)
        for start in range(0, len(x), self.block):
            part = x[start : start + self.block]
            scale = self.scale(x if self.whole else part)
            out = wire[self.wire_bytes(start) :][: 4 + len(part)]
            out[:4] = np.array([scale], np.float32).view(np.uint8)
            if np.isnan(scale):
                out[4:] = 0
            elif self.seed is None:
                out[4:] = self.codes(part / scale)
            else:
                out[4:] = self.random_codes(part / scale, uniform(self.seed, self._positions(start, len(part))))

    def decode(self, wire: Wire, out: NDArray[np.float32], scale: float = 1.0) -> None:
        """Multiply what each code stands for by its block's scale times `scale`."""
        for start in range(0, len(out), self.block):
            part = out[start : start + self.block]
            block = wire[self.wire_bytes(start) :][: 4 + len(part)]
            part[:] = self.magnitudes(block[4:]) * (block[:4].copy().view(np.float32) * np.float32(scale))

    def reduce(self, wires: Sequence[Wire], weights: Sequence[float], out: Wire, scratch: NDArray[np.float32]) -> None:
        """Sum in FP32 in the order of the wires, then encode."""
        self.encode(weighted_sum(self, wires, weights, len(scratch)), out)


class ReferenceTree(ReferenceBlock):
    """The dynamic tree turns what is below 1.5e-6 of the maximum into zero."""

    def codes(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The nearest codes of scaled numbers."""
        return np.where(np.abs(x).astype(np.float64) < ZERO_BELOW, 128 * np.signbit(x), super().codes(x)).astype(
            np.uint8
        )


class ReferenceFP8(ReferenceBlock):
    """An 8-bit float. ml_dtypes rounds to nearest, ties to even; the scale is the smallest power of two that fits."""

    def __init__(self, name: str, book: CodeBook, block: int, dtype: Any) -> None:
        """Name the codec, its book, the numbers that share a scale, and the type of a code."""
        super().__init__(name, book, block)
        self.dtype = dtype

    def scale(self, values: NDArray[np.float32]) -> np.float32:
        """The smallest power of two, from 2**-126, by which all numbers are within the type's largest."""
        largest = float(super().scale(values))
        if np.isnan(largest):
            return np.float32(np.nan)
        power = int(np.ceil(np.log2(largest / float(ml_dtypes.finfo(self.dtype).max))))
        return np.float32(2.0 ** max(power, -126))

    def codes(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The bytes of the type."""
        return x.astype(self.dtype).view(np.uint8)

    def magnitudes(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What the bytes stand for."""
        return codes.view(self.dtype).astype(np.float32)


class ReferenceOneBit(Codec):
    """Signs of the numbers, with the means of the negative and of the other ones: count, two means, bits a block."""

    def __init__(self, block: int) -> None:
        """Take the numbers that share the means."""
        self.name, self.block = "one_bit", block

    def wire_bytes(self, n: int) -> int:
        """Bytes on the wire for n numbers."""
        return sum(12 + -(-min(self.block, n - start) // 8) for start in range(0, n, self.block))

    def encode(self, values: NDArray[Any], wire: Wire) -> None:
        """Write the blocks."""
        self._encode(values.astype(np.float32), wire, [self.block] * len(values))

    def _encode(self, x: NDArray[np.float32], wire: Wire, counts: Sequence[int]) -> None:
        for k, start in enumerate(range(0, len(x), self.block)):
            part = x[start : start + self.block]
            out = wire[self.wire_bytes(start) : self.wire_bytes(start + len(part))]
            part = part[: counts[k]]
            negative = part < 0
            with np.errstate(invalid="ignore"):
                means = [self._mean(part, negative), self._mean(part, ~negative)]
            out[:4] = np.array([len(part)], np.int32).view(np.uint8)
            out[4:12] = np.array(means, np.float32).view(np.uint8)
            out[12:] = 0
            packed = np.packbits(negative, bitorder="little")
            out[12 : 12 + len(packed)] = packed

    def _mean(self, part: NDArray[np.float32], chosen: NDArray[np.bool_]) -> float:
        """Sums of 16 lanes in float64, added in order, over the count."""
        terms = np.zeros(-(-len(part) // 16) * 16)
        terms[: len(part)] = np.where(chosen, part, 0)
        lanes = np.zeros(16)
        for row in terms.reshape(-1, 16):
            lanes += row
        total = 0.0
        for lane in lanes:
            total += lane
        return total / max(int(chosen.sum()), 1)

    def _counts(self, wire: Wire, n: int) -> list[int]:
        starts = [self.wire_bytes(start) for start in range(0, n, self.block)]
        return [int(wire[at : at + 4].copy().view(np.int32)[0]) for at in starts]

    def decode(self, wire: Wire, out: NDArray[np.float32], scale: float = 1.0) -> None:
        """Write the means by sign, and 0 beyond the count."""
        for count, start in zip(self._counts(wire, len(out)), range(0, len(out), self.block), strict=True):
            part = out[start : start + self.block]
            block = wire[self.wire_bytes(start) : self.wire_bytes(start + len(part))]
            low, high = block[4:12].copy().view(np.float32) * np.float32(scale)
            negative = np.unpackbits(block[12:], count=len(part), bitorder="little").astype(bool)
            part[:] = np.where(np.arange(len(part)) < count, np.where(negative, low, high), 0)

    def reduce(self, wires: Sequence[Wire], weights: Sequence[float], out: Wire, scratch: NDArray[np.float32]) -> None:
        """Sum in FP32 in the order of the wires, then encode as many numbers as the wires have."""
        n = len(scratch)
        counts = np.max([self._counts(wire, n) for wire in wires], axis=0, initial=0)
        self._encode(weighted_sum(self, wires, weights, n), out, counts.astype(int).tolist())


def reference_codecs(block: int = DEFAULT_BLOCK) -> dict[str, Codec]:
    """The reference of every codec, by name."""
    codecs: list[Codec] = [
        ReferenceFloat("fp32", np.float32),
        ReferenceFloat("fp16", np.float16),
        ReferenceFloat("bf16", ml_dtypes.bfloat16),
        ReferenceFP8("fp8_e4m3", fp8_e4m3(), block, ml_dtypes.float8_e4m3fn),
        ReferenceFP8("fp8_e5m2", fp8_e5m2(), block, ml_dtypes.float8_e5m2),
        ReferenceTree("dynamic_tree", dynamic_tree(), block),
        ReferenceBlock("dynamic_uniform", dynamic_uniform(), block),
        ReferenceBlock("linear", linear(), block),
        ReferenceBlock("static_tree", static_tree(), block),
        ReferenceBlock("mantissa", mantissa(), block),
        ReferenceOneBit(block),
    ]
    return {codec.name: codec for codec in codecs}
