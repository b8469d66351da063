"""Shots of another machine, or of another campaign, with their signals in the order of those that a model knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dist_mp.data.processed import ProcessedShots
from dist_mp.data.shot import Shot, Signal
from dist_mp.data.statistics import ShotStatistics
from dist_mp.errors import UserError


class MatchedShots:
    """The shots of a prepared folder, signals picked by name; satisfies :class:`dist_mp.data.shot.ShotSource`."""

    def __init__(
        self,
        source: ProcessedShots,
        where: str,
        scalars: Sequence[str],
        profiles: Sequence[str],
        profile_points: int,
        step_milliseconds: float,
    ) -> None:
        """Pick the signals of these names; `where` names the folder in messages. Further signals are left aside.

        Raises:
            UserError: a signal is not there, or the time step or the points of profiles are others.
        """
        self._source = source
        self._scalars = _places(where, "scalar", source.scalar_signals, scalars)
        self._profiles = _places(where, "profile", source.profile_signals, profiles)
        if profiles and source.profile_points != profile_points:
            raise UserError(f"{where}: profiles of {source.profile_points} points; the model knows {profile_points}")
        if not np.isclose(source.step_milliseconds, step_milliseconds, rtol=1e-6):
            raise UserError(
                f"{where}: steps of {source.step_milliseconds:g} ms; the model knows {step_milliseconds:g} ms: prepare "
                "the shots with that step"
            )
        self.scalar_signals = tuple(source.scalar_signals[i] for i in self._scalars)
        self.profile_signals = tuple(source.profile_signals[i] for i in self._profiles)
        self.profile_points = profile_points
        self.step_milliseconds = source.step_milliseconds
        self.numbers, self.lengths, self.disruptive = source.numbers, source.lengths, source.disruptive
        self._columns = np.array([*self._scalars, *(len(source.scalar_signals) + i for i in self._profiles)], np.int64)

    def shot(self, index: int) -> Shot:
        """Read one shot."""
        shot = self._source.shot(index)
        return replace(
            shot,
            scalars=shot.scalars[:, self._scalars],
            profiles=shot.profiles[:, self._profiles],
            missing=shot.missing[self._columns],
        )

    def statistics(self, index: int) -> ShotStatistics:
        """Of one shot, without reading it."""
        return ShotStatistics.from_table(self._source.statistics(index).table()[:, self._columns])


def _places(where: str, kind: str, there: Sequence[Signal], wanted: Sequence[str]) -> list[int]:
    place = {signal.name: i for i, signal in enumerate(there)}
    absent = [name for name in wanted if name not in place]
    if absent:
        raise UserError(
            f"{where}: no {kind} signal {', '.join(map(repr, absent[:5]))}; there are {', '.join(place) or 'none'}. A "
            "signal that a machine lacks is named in its machine.yaml all the same, and is missing in its shots"
        )
    return [place[name] for name in wanted]
