"""What the training loop needs of a data set: a plan of an epoch that all ranks share, and the rows of one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.errors import UserError


@dataclass(frozen=True)
class DataSpec:
    """Shapes that a model is built for."""

    length: int
    """T, time steps of a training window."""
    vocabulary: int = 0
    """V, words (of pairs those of the source and its padding)."""
    scalars: int = 0
    """0D signals, the first features of an input row (campaigns only)."""
    profiles: int = 0
    """1D profiles, after the scalars, one after the other (campaigns only)."""
    profile_points: int = 0
    channels: int = 0
    """Features of a step of a labelled series (time series classification only)."""
    width: int = 0
    """Of images, which come as series: T rows from the top, and width * colours channels a row (0: not images)."""
    classes: int = 0
    """Classes of a labelled sequence, whose label stands at its last valid step (0: a target at every step)."""
    target_vocabulary: int = 0
    """Words of the target of sentence pairs, and its padding (pairs only)."""
    objects: int = 0
    """Kinds of objects of which an image may hold several, with their boxes (shapes only)."""


@dataclass(frozen=True)
class Batch:
    """One window of the rows of a rank. B rows, T time steps."""

    inputs: NDArray
    """int32 [B, T] words, [B, T, 2] of sentence pairs, or float32 [B, T, F] features."""
    targets: NDArray
    """int32 [B, T] words, or float32 [B, T]."""
    weight: NDArray[np.float32]
    """[B, T]: 1 at valid steps, 0 at padding. A loss is the weighted sum over all ranks by the sum of weights."""
    reset: NDArray[np.bool_]
    """[B]: true where a new sequence begins and the row's state must be zeroed first."""
    sequence: NDArray[np.int32] | None = None
    """[B]: number of the sequence (shot) that a row holds, -1 where the row is idle; None for one endless text."""
    position: NDArray[np.int32] | None = None
    """[B]: the time step of its sequence at which a row's window begins."""


class Split(ABC):
    """One split of a data set, cut into global batches.

    The sequence of global batches depends only on the seed, the epoch and `global_rows`, never on the number of
    ranks: rank r of P trains rows [r * global_rows / P, (r + 1) * global_rows / P) of each. Every rank therefore has
    the same number of steps.
    """

    @abstractmethod
    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches in an epoch."""

    @abstractmethod
    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        """Rows [first_row, first_row + rows) of each global batch from `start_step` on.

        What lies before `start_step` is not read. At the same `global_rows` a run that was interrupted goes on
        exactly, on any number of ranks.
        """

    def remainder(self, epoch: int, global_rows: int, steps: int) -> Split:
        """What an epoch has left after `steps` global batches of `global_rows` rows, to be cut at other global rows.

        For a run that goes on with another global batch. The two together visit everything exactly once; a sequence
        that was under way goes on where it was, from a state of zero. The split is for this epoch only, and has a
        remainder itself.

        Raises:
            UserError: this kind of data cannot do it.
        """
        raise UserError(
            f"{type(self).__name__} cannot go on in the middle of an epoch with another global batch; "
            f"keep it at {global_rows} rows, or begin a new epoch"
        )


class Dataset(ABC):
    """Training and held-out splits with the shapes of their rows."""

    spec: DataSpec
    train: Split
    valid: Split
    test: Split | None = None

    @abstractmethod
    def describe(self) -> str:
        """One line for the run's header: what the data is and how much of it."""

    def state(self) -> dict[str, Any]:
        """What prediction on other data needs of these: vocabulary, scale, classes; as JSON has it, empty if unknown.

        :mod:`dist_mp.data.unseen` reads it.
        """
        return {}
