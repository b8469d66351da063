"""NumPy statements of the codecs, which every kernel must match bit for bit. Slow on purpose: they are to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire


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


def reference_codecs() -> dict[str, Codec]:
    """The reference of every codec, by name."""
    return {
        "fp32": ReferenceFloat("fp32", np.float32),
        "fp16": ReferenceFloat("fp16", np.float16),
        "bf16": ReferenceFloat("bf16", ml_dtypes.bfloat16),
    }
