"""The control word: what every rank tells the others once a step, the only message beside the gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.data.base import Batch


class Spent(NamedTuple):
    """Seconds of this rank's last step."""

    total: float = 0.0
    exchange: float = 0.0
    wait: float = 0.0
    input: float = 0.0


class Flags(NamedTuple):
    """What a rank has to say beside its batch and its times."""

    stop: int = 0
    """Number of the signal that asked the run to stop, 0 for none."""
    due: bool = False
    """Whether it is time for a checkpoint (rank 0)."""
    written: bool = False
    """Whether this rank's part of the checkpoint under way is written."""


class Word(NamedTuple):
    """The words of all ranks, as float64 columns [num_ranks]."""

    next_weight: NDArray[np.float64]
    has_next: NDArray[np.float64]
    loss_sum: NDArray[np.float64]
    total: NDArray[np.float64]
    exchange: NDArray[np.float64]
    wait: NDArray[np.float64]
    input: NDArray[np.float64]
    stop: NDArray[np.float64]
    due: NDArray[np.float64]
    written: NDArray[np.float64]


def exchange_words(world: World, batch: Batch | None, loss_sum: float, spent: Spent, flags: Flags) -> Word:
    """Tell the next batch's weight, the last one's loss, the times and the flags; collective."""
    weight = 0.0 if batch is None else float(batch.weight.sum(dtype=np.float64))
    own = np.array([weight, float(batch is not None), loss_sum, *spent, *map(float, flags)], dtype=np.float64)
    word = Word(*world.agree(own).T.copy())
    if word.has_next.any() != word.has_next.all():
        without = np.flatnonzero(word.has_next == 0).tolist()
        raise RuntimeError(f"ranks {without} have no batch where others have one")
    return word


def rank_seconds(word: Word) -> tuple[NDArray[np.float64], ...]:
    """Seconds of compute, exchange, wait and input of each rank's last step, float64 [num_ranks] each.

    What a rank's step took beyond its own word is time spent waiting for the others' words.
    """
    total = np.maximum(word.total, 1e-9)
    compute = np.maximum(word.total - word.exchange - word.wait - word.input, 0.0)
    return compute, word.exchange, word.wait + (total.max() - total), word.input


def shares(word: Word) -> dict[str, Any]:
    """Where the time of a step went, as fields of a :class:`dist_mp.train.records.StepRecord`."""
    compute, exchange, wait, input_ = rank_seconds(word)
    slowest = np.maximum(word.total, 1e-9).max()
    return {
        "share_compute": float(compute.mean() / slowest),
        "share_exchange": float(exchange.mean() / slowest),
        "share_wait": float(wait.mean() / slowest),
        "share_input": float(input_.mean() / slowest),
        "rank_compute_seconds": [round(float(c), 6) for c in compute],
    }
