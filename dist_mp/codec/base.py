"""What every codec offers: a fixed number of bytes for n numbers, and four operations on flat arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Wire = NDArray[np.uint8]


class Codec(ABC):
    """Turns numbers into bytes for the wire and back.

    All arrays are one-dimensional and C-contiguous; `wire` holds exactly ``wire_bytes(n)`` bytes. A codec has no
    state: the same input gives the same bytes on every rank. Infinities and NaN survive as non-finite numbers.
    """

    name: str
    block: int = 1
    """Numbers that share a scale; a buffer is cut into pieces only at multiples of it."""
    whole: bool = False
    """Whether one scale serves all numbers of a call, so that a gradient must be encoded by one call."""
    stochastic: bool = False
    """Whether it rounds at random, by the numbers of :meth:`seeded`."""

    @abstractmethod
    def wire_bytes(self, n: int) -> int:
        """Bytes on the wire for n numbers."""

    def seeded(self, seed: int, start: int = 0) -> Codec:
        """The codec that rounds with the random numbers of a seed; itself where rounding is to nearest.

        Args:
            seed: from :func:`dist_mp.codec.rounding.rounding_seed`. Ranks that reduce the same numbers need the same.
            start: place in the buffer of the first number that it will encode.
        """
        return self

    @abstractmethod
    def encode(self, values: NDArray, wire: Wire) -> None:
        """Write the codes of `values` (float32, float16 or ml_dtypes.bfloat16, n numbers) into `wire`."""

    @abstractmethod
    def decode(self, wire: Wire, out: NDArray[np.float32], scale: float = 1.0) -> None:
        """Write ``scale * value`` of each code into `out` (float32, n numbers)."""

    @abstractmethod
    def reduce(self, wires: Sequence[Wire], weights: Sequence[float], out: Wire, scratch: NDArray[np.float32]) -> None:
        """Encode the weighted sum of equally long pieces into `out`.

        The sum runs in FP32 in the order of `wires` (Micikevicius et al. 2018, section 3.3) and cannot overflow in
        16 bits; it is rounded once. `scratch` has room for n float32 numbers.
        """
