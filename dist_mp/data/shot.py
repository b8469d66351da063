"""A tokamak shot in memory, and what a source of shots offers, be it a generator or a folder of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dist_mp.data.statistics import ShotStatistics


@dataclass(frozen=True)
class Signal:
    """One diagnostic: a scalar (0D) or a profile (1D) a time step."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Shot:
    """One discharge, sampled at equal time steps. T steps, S scalars, P profiles, X points of a profile.

    A disruptive shot ends with its disruption: step T - 1 is the last one before it.
    """

    number: int
    """The shot's number in its campaign, or its identifier on its machine."""
    disruptive: bool
    scalars: NDArray[np.float32]
    """[T, S]"""
    profiles: NDArray[np.float32]
    """[T, P, X], from the axis (0) to the edge (1) on an even grid."""
    missing: NDArray[np.bool_]
    """[S + P]: true where the signal was not recorded in this shot; its values are 0."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.scalars)

    def features(self) -> NDArray[np.float32]:
        """[T, S + P * X]: the scalars, then the profiles one after the other."""
        return np.concatenate([self.scalars, self.profiles.reshape(self.steps, -1)], axis=1)


class ShotSource(Protocol):
    """Shots by their index; lengths and classes are known without reading a shot."""

    scalar_signals: tuple[Signal, ...]
    profile_signals: tuple[Signal, ...]
    profile_points: int
    step_milliseconds: float
    numbers: NDArray[np.int64]
    """[N], the shots' own numbers."""
    lengths: NDArray[np.int64]
    """[N], time steps."""
    disruptive: NDArray[np.bool_]
    """[N]"""

    def shot(self, index: int) -> Shot:
        """Read or make one shot; may be called from any thread."""
        ...

    def statistics(self, index: int) -> ShotStatistics | None:
        """What is known of a shot without reading it; None where it must be read."""
        ...
