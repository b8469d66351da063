"""Error feedback: what the wire could not carry in one step is added to the gradients of the next.

Seide et al., '1-Bit Stochastic Gradient Descent' (2014), section 2; Karimireddy et al., 'Error Feedback Fixes SignSGD'
(2019), algorithm 1. In the words of GRACE: compensate, compress, update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.codec.numbers import kernel_view, widen


@njit(nogil=True, cache=True)
def add_residual(
    values: NDArray[Any], residual: NDArray[np.float32], loss_scale: np.float32, out: NDArray[np.float32]
) -> None:
    """Write ``value + residual * loss_scale``."""
    for i in range(out.size):
        out[i] = widen(values[i]) + residual[i] * loss_scale


@njit(nogil=True, cache=True)
def take_difference(
    compensated: NDArray[np.float32], decoded: NDArray[np.float32], unscale: np.float32, out: NDArray[np.float32]
) -> None:
    """Write ``(compensated - decoded) * unscale``. `out` may be `decoded`."""
    for i in range(out.size):
        out[i] = (compensated[i] - decoded[i]) * unscale


class ErrorFeedback:
    """Residuals of one rank's gradients, one flat array a gradient.

    A residual takes effect only with the step that it belongs to: `encode` leaves the new one pending, `commit` puts
    it in place once the update was applied, `discard` drops it when the step was skipped, since then the gradients of
    that step, with what the wire lost of them, never counted.

    Residuals are kept without the loss scale, so that they outlive a change of it.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Start with residuals of 0.

        Args:
            sizes: numbers of each gradient.
        """
        self._residuals = [np.zeros(n, np.float32) for n in sizes]
        self._next = [np.zeros(n, np.float32) for n in sizes]
        self._pending = [False] * len(self._residuals)
        self._compensated = np.empty(max(sizes, default=0), np.float32)

    def encode(
        self, index: int, values: NDArray[Any], codec: Codec, wire: Wire, loss_scale: float = 1.0
    ) -> NDArray[np.float32]:
        """Encode a gradient plus its residual, and keep the error of that as the pending residual.

        Args:
            index: number of the gradient.
            values: the gradient, flat, times `loss_scale`; float32, float16 or bfloat16.
            codec: writes the wire.
            wire: ``codec.wire_bytes(len(values))`` bytes.
            loss_scale: of this step.

        Returns:
            What was encoded, until the next call. An infinity or NaN makes the pending residual useless, and the
            step has to be discarded.
        """
        residual, error = self._residuals[index], self._next[index]
        if len(values) != len(residual):
            raise ValueError(f"gradient {index} has {len(values)} numbers, its residual {len(residual)}")
        compensated = self._compensated[: len(residual)]
        add_residual(kernel_view(values), residual, np.float32(loss_scale), compensated)
        codec.encode(compensated, wire)
        codec.decode(wire, error)
        take_difference(compensated, error, np.float32(1 / loss_scale), error)
        self._pending[index] = True
        return compensated

    def commit(self) -> None:
        """The step was applied: pending residuals take the place of the old ones."""
        for index, pending in enumerate(self._pending):
            if pending:
                self._residuals[index], self._next[index] = self._next[index], self._residuals[index]
        self.discard()

    def discard(self) -> None:
        """The step was skipped: the old residuals stay."""
        self._pending = [False] * len(self._pending)

    def state(self) -> list[NDArray[np.float32]]:
        """Copies of the committed residuals, for a checkpoint."""
        return [residual.copy() for residual in self._residuals]

    def load(self, residuals: Sequence[NDArray[np.float32]]) -> None:
        """Take the residuals of a checkpoint; nothing is pending afterwards.

        Residuals count in the mean over the ranks. From another number of ranks, give each of the N ranks the sum of
        all residuals divided by the old number of ranks; the mean is then the same.
        """
        sizes, expected = [len(r) for r in residuals], [len(r) for r in self._residuals]
        if sizes != expected:
            raise ValueError(f"residuals of {sizes} numbers for gradients of {expected}")
        for mine, given in zip(self._residuals, residuals, strict=True):
            mine[:] = given
        self.discard()
