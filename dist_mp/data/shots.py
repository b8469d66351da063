"""Tokamak shots as training windows: split, normalised, labelled, and dealt to the slots of global batches."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import CampaignData, Config, DisruptionModel, ShotsData, ShotWindows
from dist_mp.data.base import Batch, Dataset, DataSpec, Split
from dist_mp.data.campaign import Campaign
from dist_mp.data.matched import MatchedShots
from dist_mp.data.normalise import Normaliser, feature_widths
from dist_mp.data.partition import Partition, partition_by_lists, stratified_partition
from dist_mp.data.processed import ProcessedShots
from dist_mp.data.shot import Shot, ShotSource
from dist_mp.data.slots import Pieces, SlotPlan
from dist_mp.data.statistics import ShotStatistics
from dist_mp.errors import UserError

CACHE_BYTES = 1 << 30


class ShotCache:
    """Shots in memory, the least recently used dropped beyond a limit; safe for several threads."""

    def __init__(self, source: ShotSource, limit_bytes: int = CACHE_BYTES) -> None:
        """Read through to `source`, holding at most `limit_bytes` of features (always at least one shot)."""
        self._source = source
        self._limit = limit_bytes
        self._held: OrderedDict[int, tuple[NDArray[np.float32], NDArray[np.bool_]]] = OrderedDict()
        self.held_bytes = 0
        self._lock = threading.Lock()

    def keep(self, index: int, shot: Shot) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Hold a shot that was just read; returns its features [T, F] and what is missing [S + P]."""
        entry = shot.features(), shot.missing
        with self._lock:
            if index not in self._held:
                self.held_bytes += entry[0].nbytes
            self._held[index] = entry
            while self.held_bytes > self._limit and len(self._held) > 1:
                _, (dropped, _) = self._held.popitem(last=False)
                self.held_bytes -= dropped.nbytes
        return entry

    def get(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features [T, F] and missing signals [S + P] of a shot."""
        with self._lock:
            if index in self._held:
                self._held.move_to_end(index)
                return self._held[index]
        return self.keep(index, self._source.shot(index))


def shot_targets(target: str, length: int, disruptive: bool, warning_steps: int) -> NDArray[np.float32]:
    """What the output is trained on at each step of a shot, float32 [T] (facts of FRNN, `targets.py`).

    With r = T - 1 - t steps left at step t and W = `warning_steps`:
    hinge, maxhinge: +1 in the last W steps of a disruptive shot, else -1; binary: 1 and 0;
    ttd: -log10(min(r + 0.1, W)) in a disruptive shot, else -log10(W), so that a higher output is more alarming.
    """
    remaining = np.arange(length - 1, -1, -1, dtype=np.float64)
    if target == "ttd":
        left = np.minimum(remaining + 0.1, warning_steps) if disruptive else np.full(length, float(warning_steps))
        return (-np.log10(left)).astype(np.float32)
    alarm = (remaining < warning_steps) & disruptive
    return np.where(alarm, 1.0, 0.0 if target == "binary" else -1.0).astype(np.float32)


def trained_steps(lengths: NDArray[np.int64], settings: ShotWindows) -> NDArray[np.int64]:
    """Steps of each shot that are trained on: without the last `cut_steps`, where more than a window is left."""
    cut = lengths - settings.cut_steps
    return np.where(cut > settings.length, cut, lengths)


class ShotSplit(Split):
    """Some shots of a source, dealt to slots (:mod:`dist_mp.data.slots`).

    `Batch.sequence` numbers the shots of the split from 0; `lengths`, `disruptive` and `numbers` are indexed by it.
    """

    def __init__(
        self,
        cache: ShotCache,
        normaliser: Normaliser,
        indices: NDArray[np.int64],
        lengths: NDArray[np.int64],
        disruptive: NDArray[np.bool_],
        settings: ShotWindows,
        target: str,
        order_seed: int | None,
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        """Take the shots `indices` of the cache's source, whose own numbers are `numbers` (None: the same).

        With `order_seed` None the longest shot comes first in every epoch, and all of each shot is visited; otherwise
        the settings say what is cut of the ends, and whether the first shots begin at random offsets.
        """
        self._indices = indices
        self.numbers = indices if numbers is None else numbers
        self.lengths = lengths
        self.disruptive = disruptive
        self._cache = cache
        self._normaliser = normaliser
        self.settings = settings
        self._target = target
        self._order_seed = order_seed
        self._pieces = Pieces.whole(lengths if order_seed is None else trained_steps(lengths, settings))
        self._left: Pieces | None = None
        self._last_plan: tuple[tuple[int, int], SlotPlan] | None = None

    def whole(self) -> ShotSplit:
        """The same shots in one order and to their ends, as held-out shots are."""
        rest = copy.copy(self)
        rest._order_seed, rest._pieces, rest._last_plan = None, Pieces.whole(self.lengths), None
        return rest

    def plan(self, epoch: int, global_rows: int) -> SlotPlan:
        """The rows of all global batches of an epoch, the same on every rank."""
        key = (epoch if self._order_seed is not None else 0, global_rows)
        last = self._last_plan
        if last is not None and last[0] == key:
            return last[1]
        plan = self._ordered(epoch, global_rows).plan(self.settings.length, global_rows)
        self._last_plan = key, plan
        return plan

    def _ordered(self, epoch: int, global_rows: int) -> Pieces:
        """The shots, or what is to be visited of them, in the order of the epoch."""
        if self._left is not None:
            return self._left
        if self._order_seed is None:
            return self._pieces.take(np.argsort(-self._pieces.length, kind="stable"))
        seed, offsets = (self._order_seed, epoch), self.settings.random_offsets
        return self._pieces.shuffled(self.settings.length, global_rows, seed, offsets)

    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches in an epoch; differs a little between epochs, as the order does."""
        return self.plan(epoch, global_rows).steps

    def remainder(self, epoch: int, global_rows: int, steps: int) -> ShotSplit:
        """See :class:`Split`: shots under way first, then those that wait."""
        rest = copy.copy(self)
        rest._left = self._ordered(epoch, global_rows).remainder(self.settings.length, global_rows, steps)
        rest._last_plan = None
        return rest

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        """See :class:`Split`. Padding and idle rows are zeros. The recurrent state at `start_step` is the caller's."""
        if not 0 <= first_row <= first_row + rows <= global_rows:
            raise ValueError(f"rows {first_row} to {first_row + rows} are not within {global_rows}")
        plan = self.plan(epoch, global_rows)
        mine = slice(first_row, first_row + rows)
        for step in range(start_step, plan.steps):
            yield self._batch(
                plan.sequence[step, mine], plan.position[step, mine], plan.valid[step, mine], plan.reset[step, mine]
            )

    def _batch(self, sequence: NDArray, position: NDArray, valid: NDArray, reset: NDArray) -> Batch:
        length, rows = self.settings.length, len(sequence)
        inputs = np.zeros((rows, length, len(self._normaliser.mean)), np.float32)
        targets = np.zeros((rows, length), np.float32)
        for row in np.flatnonzero(sequence >= 0):
            which, begin, count = (int(sequence[row]), int(position[row]), int(valid[row]))
            features, missing = self._cache.get(int(self._indices[which]))
            inputs[row, :count] = self._normaliser.window(features, missing, begin, count)
            targets[row, :count] = shot_targets(
                self._target, int(self.lengths[which]), bool(self.disruptive[which]), self.settings.warning_steps
            )[begin : begin + count]
        weight = (np.arange(length) < valid[:, None]).astype(np.float32)
        return Batch(inputs, targets, weight, reset.copy(), sequence.copy(), position.copy())


class ShotDataset(Dataset):
    """Shots of a source, split into training, held-out and perhaps test shots."""

    train: ShotSplit
    valid: ShotSplit
    test: ShotSplit | None

    def __init__(
        self, source: ShotSource, settings: ShotWindows, partition: Partition, target: str, order_seed: int
    ) -> None:
        """Fit the normaliser on the training shots, and order epochs by `order_seed`."""
        self.source = source
        self._cache = ShotCache(source)
        self._settings, self._target, self._name, self._test_name = settings, target, "campaign", ""
        widths = feature_widths(len(source.scalar_signals), len(source.profile_signals), source.profile_points)
        known = [self._statistics(index) for index in partition.train.tolist()]
        self.normaliser = Normaliser.from_statistics(known, widths, settings.normaliser, settings.average_steps)
        self.spec = DataSpec(
            length=settings.length,
            scalars=len(source.scalar_signals),
            profiles=len(source.profile_signals),
            profile_points=source.profile_points,
        )
        self.train, self.valid = self.split(partition.train, order_seed), self.split(partition.valid, None)
        self.test = self.split(partition.test, None) if len(partition.test) else None

    def split(self, indices: NDArray[np.int64], order_seed: int | None) -> ShotSplit:
        """Some shots of the source, reshuffled each epoch by `order_seed` (None: always the longest first)."""
        source = self.source
        return ShotSplit(
            self._cache,
            self.normaliser,
            indices,
            source.lengths[indices],
            source.disruptive[indices],
            self._settings,
            self._target,
            order_seed,
            source.numbers[indices],
        )

    def _statistics(self, index: int) -> ShotStatistics:
        known = self.source.statistics(index)
        if known is not None:
            return known
        shot = self.source.shot(index)
        self._cache.keep(index, shot)
        return ShotStatistics.of(shot)

    @classmethod
    def from_config(cls, config: Config) -> ShotDataset:
        """The shots of `config.data`, with the targets of `config.model`."""
        settings = config.data
        if not isinstance(config.model, DisruptionModel):
            raise TypeError(f"shots train a disruption model, got {config.model.kind}")
        if isinstance(settings, CampaignData):
            partition = stratified_partition(generated := Campaign(settings), settings, "data.shots")
            return cls(generated, settings, partition, config.model.target, config.seed)
        if not isinstance(settings, ShotsData):
            raise TypeError(f"not shots: {settings.kind}")
        if not settings.path:
            raise UserError("data.path: is empty; name a folder of prepared shots (dist-mp data prepare)")
        recorded = ProcessedShots(Path(settings.path))
        if settings.train_list:
            partition = partition_by_lists(recorded, settings)
        else:
            partition = stratified_partition(recorded, settings, "data.path", settings.test_fraction)
        dataset = cls(recorded, settings, partition, config.model.target, config.seed)
        dataset._name = settings.path
        if settings.test_path:
            if len(partition.test):
                raise UserError("data.test_path: is all of the test; leave test_list and test_fraction out")
            dataset.test = dataset.other_machine(Path(settings.test_path), settings.test_scale == "own")
            dataset._test_name = f" from {settings.test_path}"
        return dataset

    def other_machine(self, folder: Path, own_scale: bool) -> ShotSplit:
        """All shots of another prepared folder, scaled by its own shots or by those that are trained on here."""
        source = self.source
        scalars, profiles = ([s.name for s in kind] for kind in (source.scalar_signals, source.profile_signals))
        other = ProcessedShots(folder)
        shots = MatchedShots(other, str(folder), scalars, profiles, source.profile_points, source.step_milliseconds)
        normaliser = self.normaliser
        if own_scale:
            known = [shots.statistics(index) for index in range(len(shots.lengths))]
            kind, average = self._settings.normaliser, self._settings.average_steps
            normaliser = Normaliser.from_statistics(known, normaliser.widths, kind, average)
        everything = np.arange(len(shots.lengths))
        return ShotSplit(
            ShotCache(shots),
            normaliser,
            everything,
            shots.lengths,
            shots.disruptive,
            self._settings,
            self._target,
            None,
            shots.numbers,
        )

    def state(self) -> dict[str, Any]:
        """Signals, time step and scale."""
        return {
            "scalars": [signal.name for signal in self.source.scalar_signals],
            "profiles": [signal.name for signal in self.source.profile_signals],
            "profile_points": self.source.profile_points,
            "step_milliseconds": self.source.step_milliseconds,
            "mean": self.normaliser.mean.tolist(),
            "scale": self.normaliser.scale.tolist(),
        }

    def describe(self) -> str:
        """One line for the run's header."""
        splits = [("training", self.train), ("held-out", self.valid), ("test", self.test)]
        parts = [
            f"{len(s.numbers)} {name} ({int(s.disruptive.sum())} disruptive, {int(s.lengths.sum()):,} steps)"
            for name, s in splits
            if s is not None
        ]
        spec = self.spec
        shapes = f"{spec.scalars} scalars and {spec.profiles} profiles of {spec.profile_points} points"
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]])
        return f"{self._name}: {listed} shots{self._test_name}, {shapes}"
