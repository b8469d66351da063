"""Shots that were read, checked and resampled once, in a format that holds no code: `.npy` arrays and a JSON index.

FOLDER/index.json       signals, and for each shot its number, steps, class and missing signals; what was refused
FOLDER/statistics.npy   float64 [N, 5, S + P], see :class:`dist_mp.data.statistics.ShotStatistics`
FOLDER/NUMBER.npy       float32 [T, S + P * X]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dist_mp.data.folder import new_folder
from dist_mp.data.machine import read_machine
from dist_mp.data.raw import ShotRefusedError, read_shot
from dist_mp.data.recordings import open_recordings
from dist_mp.data.shot import Shot, Signal
from dist_mp.data.statistics import ShotStatistics
from dist_mp.errors import UserError

INDEX, STATISTICS = "index.json", "statistics.npy"
FORMAT = "dist-mp shots 1"

Refusals = dict[int, dict[str, str]]
"""Why shots were refused: by number of the shot and name of the signal (empty: the shot itself)."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ShotFormat:
    """What all shots of a folder have in common."""

    scalars: tuple[Signal, ...]
    profiles: tuple[Signal, ...]
    profile_points: int
    step_milliseconds: float


@dataclass(frozen=True)
class Preparation:
    """What became of the shots of a list."""

    kept: int
    refused: Refusals


def prepare_shots(raw: Path, out: Path, minimum_steps: int = 100, progress: Progress | None = None) -> Preparation:
    """Read all shots of a raw folder and write them to `out`, which must not exist yet or be empty.

    A shot that cannot be used is left out and reported with its reasons. The folder appears only when it is complete:
    an interrupted preparation leaves nothing under its name.
    """
    if not raw.is_dir():
        raise UserError(f"{raw}: no such folder; it holds machine.yaml and the recordings of shots")
    machine = read_machine(raw)
    recordings = open_recordings(raw, machine)
    shared = ShotFormat(
        tuple(signal.signal for signal in machine.scalars),
        tuple(signal.signal for signal in machine.profiles),
        machine.profile_points,
        machine.step_milliseconds,
    )

    def read(number: int) -> Shot:
        return read_shot(recordings, machine, number, minimum_steps)

    return write_processed(out, shared, list(recordings.shots), read, f"{raw}", progress)


def write_processed(
    out: Path,
    shared: ShotFormat,
    numbers: Iterable[int],
    read: Callable[[int], Shot],
    source: str,
    progress: Progress | None = None,
) -> Preparation:
    """Write the shots that `read` gives and note those that it refuses (:class:`ShotRefusedError`)."""
    listed = list(numbers)
    with new_folder(out) as partial:
        shots, refused, statistics = [], Refusals(), []
        for done, number in enumerate(listed, 1):
            try:
                shot = read(number)
            except ShotRefusedError as error:
                refused[number] = error.reasons
            else:
                np.save(partial / f"{number}.npy", shot.features(), allow_pickle=False)
                statistics.append(ShotStatistics.of(shot).table())
                missing = [int(i) for i in np.flatnonzero(shot.missing)]
                shots.append({"number": number, "steps": shot.steps, "disruptive": shot.disruptive, "missing": missing})
            if progress is not None:
                progress(done, len(listed))
        if not shots:
            first = f"; shot {listed[0]}: {reason_text(refused[listed[0]])}" if listed else ""
            raise UserError(f"{source}: none of {len(listed)} shots can be used{first}")
        index = {
            "format": FORMAT,
            "step_milliseconds": shared.step_milliseconds,
            "profile_points": shared.profile_points,
            "scalars": [asdict(signal) for signal in shared.scalars],
            "profiles": [asdict(signal) for signal in shared.profiles],
            "shots": shots,
            "refused": {str(number): reasons for number, reasons in refused.items()},
        }
        np.save(partial / STATISTICS, np.stack(statistics), allow_pickle=False)
        (partial / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return Preparation(len(shots), refused)


def reason_text(reasons: Mapping[str, str]) -> str:
    """Why a shot was refused, in one line."""
    return "; ".join(f"{name}: {reason}" if name else reason for name, reason in reasons.items())


class ProcessedShots:
    """The shots of a prepared folder; satisfies :class:`dist_mp.data.shot.ShotSource`."""

    def __init__(self, folder: Path) -> None:
        """Read the index and the statistics; shots are read when they are asked for."""
        self._folder = folder
        path = folder / INDEX
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            if index["format"] != FORMAT:
                raise ValueError(f"its format is {index['format']!r}, known is {FORMAT!r}")
            self.scalar_signals = tuple(Signal(**signal) for signal in index["scalars"])
            self.profile_signals = tuple(Signal(**signal) for signal in index["profiles"])
            self.profile_points = int(index["profile_points"])
            self.step_milliseconds = float(index["step_milliseconds"])
            shots = index["shots"]
            self.numbers = np.array([int(shot["number"]) for shot in shots], np.int64)
            self.lengths = np.array([int(shot["steps"]) for shot in shots], np.int64)
            self.disruptive = np.array([bool(shot["disruptive"]) for shot in shots], np.bool_)
            self.refused: Refusals = {int(number): dict(reasons) for number, reasons in index["refused"].items()}
            self.missing = np.zeros((len(shots), len(self.scalar_signals) + len(self.profile_signals)), np.bool_)
            for row, shot in enumerate(shots):
                self.missing[row, shot["missing"]] = True
            if not shots or self.lengths.min() < 1 or self.profile_points < 0 or len(set(self.numbers)) != len(shots):
                raise ValueError("no shots, a shot twice, or one without steps")
        except OSError as error:
            hint = (
                "prepare it first: dist-mp data prepare" if (folder / "machine.yaml").is_file() else "is it prepared?"
            )
            raise UserError(f"{path}: cannot be read: {error.strerror}; a folder of prepared shots, {hint}") from error
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise UserError(f"{path}: not an index of prepared shots ({type(error).__name__}: {error})") from error
        self._statistics = self._load(STATISTICS, (len(shots), 5, self.missing.shape[1]), np.dtype(np.float64))

    def shot(self, index: int) -> Shot:
        """Read one shot."""
        number, scalars = int(self.numbers[index]), len(self.scalar_signals)
        steps = int(self.lengths[index])
        shape = (steps, scalars + len(self.profile_signals) * self.profile_points)
        features = self._load(f"{number}.npy", shape, np.dtype(np.float32))
        return Shot(
            number=number,
            disruptive=bool(self.disruptive[index]),
            scalars=features[:, :scalars],
            profiles=features[:, scalars:].reshape(steps, len(self.profile_signals), self.profile_points),
            missing=self.missing[index],
        )

    def statistics(self, index: int) -> ShotStatistics:
        """Of one shot, without reading it."""
        return ShotStatistics.from_table(self._statistics[index])

    def _load(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        path = self._folder / name
        try:
            # Mapped first: a header that announces another shape than the index costs no memory.
            mapped = np.lib.format.open_memmap(path, mode="r")
            if mapped.shape != shape or mapped.dtype != dtype:
                raise ValueError(f"holds {mapped.dtype} {mapped.shape}, the index says {dtype} {shape}")
            array: np.ndarray = np.array(mapped)
        except (OSError, ValueError, EOFError, AttributeError) as error:
            raise UserError(
                f"{path}: cannot be read ({' '.join(str(error).split())}); prepare the shots again"
            ) from error
        if not np.isfinite(array).all():
            raise UserError(f"{path}: holds a number that is not finite; prepare the shots again")
        return array
