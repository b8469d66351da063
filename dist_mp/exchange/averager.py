"""What the training step needs of whatever averages gradients in its place in the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.exchange.placement import GpuPath
from dist_mp.exchange.stats import ExchangeStats


class Averager(ABC):
    """Averages the buckets of a plan, one call at a time, in the same order on all ranks."""

    stats: ExchangeStats
    """Running totals of time and bytes on this rank."""

    gpu: GpuPath | None = None
    """Where the gradients lie on this rank's GPU; None for host memory."""

    loss_scale: float = 1.0
    """Factor on the gradients of this step, which error feedback keeps out of its residuals."""

    step: int = 0
    """Number of this step, which stochastic rounding takes its random numbers from."""

    @abstractmethod
    def mean(self, index: int, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Average bucket `index` of the plan. Collective.

        Args:
            index: number of the bucket in the plan.
            sources: this rank's gradients in the order of the bucket's slots, float32, float16 or bfloat16. With a
                GPU: flat device arrays whose memory is ready; bfloat16 by its bits, as uint16.
            out: gets the mean, float32, as long as the bucket; 0 between the slots. With a GPU a device array.
        """

    @abstractmethod
    def settle(self, applied: bool) -> None:
        """The step is over: what the wire lost counts in the next one if the update was applied, and is dropped if not.

        Does nothing without error feedback.
        """

    @abstractmethod
    def residuals(self) -> list[NDArray[np.float32]]:
        """Copies of this rank's residuals of error feedback, in the order of the variables; none without it."""

    @abstractmethod
    def load_residuals(self, residuals: Sequence[NDArray[np.float32]]) -> None:
        """Take over residuals, of a checkpoint, in the shapes that :meth:`residuals` gives."""

    @abstractmethod
    def close(self) -> None:
        """Free shared memory and MPI's objects. Collective."""
