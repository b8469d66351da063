"""Tokamak shots as training windows: split, normalised, labelled, and dealt to the slots of global batches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import CampaignData, Config, DisruptionModel
from dist_mp.data.base import Batch, Dataset, DataSpec, Split
from dist_mp.data.campaign import Campaign
from dist_mp.data.normalise import Normaliser
from dist_mp.data.shot import Shot, ShotSource
from dist_mp.data.slots import SlotPlan, plan_slots, shuffled_order
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


class ShotSplit(Split):
    """Some shots of a source, dealt to slots (:mod:`dist_mp.data.slots`).

    `Batch.sequence` numbers the shots of the split from 0; `lengths`, `disruptive` and `numbers` are indexed by it.
    """

    def __init__(
        self,
        cache: ShotCache,
        normaliser: Normaliser,
        numbers: NDArray[np.int64],
        lengths: NDArray[np.int64],
        disruptive: NDArray[np.bool_],
        settings: CampaignData,
        target: str,
        order_seed: int | None,
    ) -> None:
        """Take the shots `numbers` of the cache's source; `order_seed` None keeps one order in every epoch."""
        self.numbers = numbers
        self.lengths = lengths
        self.disruptive = disruptive
        self._cache = cache
        self._normaliser = normaliser
        self._settings = settings
        self._target = target
        self._order_seed = order_seed
        self._last_plan: tuple[tuple[int, int], SlotPlan] | None = None

    def plan(self, epoch: int, global_rows: int) -> SlotPlan:
        """The rows of all global batches of an epoch, the same on every rank."""
        key = (epoch if self._order_seed is not None else 0, global_rows)
        last = self._last_plan
        if last is not None and last[0] == key:
            return last[1]
        if self._order_seed is None:
            order = np.argsort(-self.lengths, kind="stable")
        else:
            order = shuffled_order(self.lengths, global_rows, (self._order_seed, epoch))
        plan = plan_slots(self.lengths, order, self._settings.length, global_rows)
        self._last_plan = key, plan
        return plan

    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches in an epoch; differs a little between epochs, as the order does."""
        return self.plan(epoch, global_rows).steps

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
        length, rows = self._settings.length, len(sequence)
        inputs = np.zeros((rows, length, len(self._normaliser.mean)), np.float32)
        targets = np.zeros((rows, length), np.float32)
        for row in np.flatnonzero(sequence >= 0):
            which, begin, count = (int(sequence[row]), int(position[row]), int(valid[row]))
            features, missing = self._cache.get(int(self.numbers[which]))
            inputs[row, :count] = self._normaliser.apply(features[begin : begin + count], missing)
            targets[row, :count] = shot_targets(
                self._target, int(self.lengths[which]), bool(self.disruptive[which]), self._settings.warning_steps
            )[begin : begin + count]
        weight = (np.arange(length) < valid[:, None]).astype(np.float32)
        return Batch(inputs, targets, weight, reset.copy(), sequence.copy(), position.copy())


class CampaignDataset(Dataset):
    """Shots of a source, split into training and held-out ones, each with the source's share of disruptions."""

    train: ShotSplit
    valid: ShotSplit

    def __init__(self, source: ShotSource, settings: CampaignData, target: str, order_seed: int) -> None:
        """Split by `settings.seed`, fit the normaliser on the training shots, order epochs by `order_seed`."""
        self.source = source
        training, held_out = stratified_split(source.disruptive, settings.validation_fraction, settings.seed)
        self._cache = ShotCache(source)
        self._settings, self._target = settings, target
        self.normaliser = Normaliser.fit(_reading(source, self._cache, training))
        self.spec = DataSpec(
            length=settings.length,
            scalars=len(source.scalar_signals),
            profiles=len(source.profile_signals),
            profile_points=source.profile_points,
        )
        self.train, self.valid = self.split(training, order_seed), self.split(held_out, None)

    def split(self, numbers: NDArray[np.int64], order_seed: int | None) -> ShotSplit:
        """Some shots of the source, reshuffled each epoch by `order_seed` (None: always the longest first)."""
        lengths, disruptive = self.source.lengths[numbers], self.source.disruptive[numbers]
        return ShotSplit(
            self._cache, self.normaliser, numbers, lengths, disruptive, self._settings, self._target, order_seed
        )

    @classmethod
    def from_config(cls, config: Config) -> CampaignDataset:
        """The generated campaign of `config.data`, with the targets of `config.model`."""
        if not isinstance(config.data, CampaignData) or not isinstance(config.model, DisruptionModel):
            raise TypeError(f"a campaign trains a disruption model, got {config.data.kind} and {config.model.kind}")
        return cls(Campaign(config.data), config.data, config.model.target, config.seed)

    def describe(self) -> str:
        """One line for the run's header."""
        parts = [
            f"{len(s.numbers)} {name} ({int(s.disruptive.sum())} disruptive, {int(s.lengths.sum()):,} steps)"
            for name, s in (("training", self.train), ("held-out", self.valid))
        ]
        spec = self.spec
        shapes = f"{spec.scalars} scalars and {spec.profiles} profiles of {spec.profile_points} points"
        return f"campaign of {' and '.join(parts)} shots, {shapes}"


def stratified_split(
    disruptive: NDArray[np.bool_], fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shuffle each class and hold out `fraction` of it; both classes must have a shot on both sides."""
    rng = np.random.default_rng([seed, 2])
    training, held_out = [], []
    for kind, name in ((True, "disruptive"), (False, "clean")):
        numbers = rng.permutation(np.flatnonzero(disruptive == kind))
        held = round(len(numbers) * fraction)
        if not 0 < held < len(numbers):
            raise UserError(
                f"data.shots: {len(numbers)} {name} shots cannot be split with validation_fraction {fraction:g} so "
                "that training and validation have at least one each; use more shots"
            )
        held_out.append(numbers[:held])
        training.append(numbers[held:])
    return np.sort(np.concatenate(training)), np.sort(np.concatenate(held_out))


def _reading(source: ShotSource, cache: ShotCache, numbers: NDArray[np.int64]) -> Iterator[Shot]:
    for number in numbers.tolist():
        shot = source.shot(number)
        cache.keep(number, shot)
        yield shot
