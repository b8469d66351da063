"""Shots from their recordings: one time grid for all signals, checked as FRNN does, and written back as text files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.folder import new_folder
from dist_mp.data.machine import SHOT_LIST, Machine, SignalFile, write_machine
from dist_mp.data.recordings import Array, Recording, RecordingError, Recordings, signal_path
from dist_mp.data.shot import Shot, ShotSource

MARGIN_SECONDS = 0.05
"""A clean shot ends so long after the current has fallen below its threshold (as on JET in FRNN)."""
MAX_STEPS = 1 << 26


class ShotRefusedError(Exception):
    """A shot that cannot be used. The others go on without it."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        """Why, by name of the signal; the reason under an empty name is of the shot itself."""
        super().__init__("; ".join(f"{name}: {reason}" if name else reason for name, reason in reasons.items()))
        self.reasons = dict(reasons)


def resample(recording: Recording, grid: Array, shift: float, points: int) -> NDArray[np.float32]:
    """Values at the times `grid` (s): the last one recorded at least `shift` seconds before, so nothing of the future.

    Before the first recorded value stands that value. A scalar gives [T]; a profile is interpolated linearly to
    `points` even coordinates on [0, 1] and gives [T, points].
    """
    at = np.maximum(np.searchsorted(recording.time, grid - shift + 1e-9, side="right") - 1, 0)
    if recording.coordinates is None:
        return recording.values[at, 0].astype(np.float32)
    even = np.linspace(0.0, 1.0, points)
    used, back = np.unique(at, return_inverse=True)
    rows = np.empty((len(used), points))
    for i, row in enumerate(used.tolist()):
        order = np.argsort(recording.coordinates[row], kind="stable")
        rows[i] = np.interp(even, recording.coordinates[row][order], recording.values[row][order])
    return rows[back].astype(np.float32)


def read_shot(recordings: Recordings, machine: Machine, number: int, minimum_steps: int) -> Shot:
    """Bring all signals of a shot to one time grid.

    It starts when the current first exceeds its threshold and ends at the disruption, or 50 ms after the current was
    last above the threshold. A signal without a recording is missing in the shot; without the current there is no
    shot. Raises :class:`ShotRefusedError`, naming every signal that is damaged, is not recorded within the shot, or
    does not change, and where the shot is shorter than `minimum_steps`.
    """
    current_signal = next(s for s in machine.scalars if s.name == machine.current)
    try:
        current = recordings.read(current_signal, False, number)
        if current is None:
            raise RecordingError("not recorded; without the current a shot has no beginning and end")
        grid, end = _time_grid(current, machine, recordings.shots[number], minimum_steps)
    except RecordingError as error:
        raise ShotRefusedError({machine.current: str(error)}) from error

    refused: dict[str, str] = {}
    missing: list[bool] = []

    def column(signal: SignalFile, profile: bool) -> NDArray[np.float32]:
        shape = (len(grid), machine.profile_points) if profile else (len(grid),)
        try:
            recording = current if signal is current_signal else recordings.read(signal, profile, number)
            missing.append(recording is None)
            if recording is not None:
                return _checked(recording, grid, end, signal, machine.profile_points)
        except RecordingError as error:
            refused[signal.name] = str(error)
        return np.zeros(shape, np.float32)

    scalars = [column(signal, False) for signal in machine.scalars]
    profiles = [column(signal, True) for signal in machine.profiles]
    if refused:
        raise ShotRefusedError(refused)
    return Shot(
        number=number,
        disruptive=recordings.shots[number] >= 0,
        scalars=np.stack(scalars, axis=1),
        profiles=np.stack(profiles, axis=1) if profiles else np.zeros((len(grid), 0, 0), np.float32),
        missing=np.array(missing),
    )


def _time_grid(current: Recording, machine: Machine, disruption: float, minimum_steps: int) -> tuple[Array, float]:
    """Times of the steps of a shot, and when it ends (s); raises :class:`RecordingError`."""
    flowing = np.flatnonzero(np.abs(current.values[:, 0]) > machine.current_threshold)
    if not len(flowing):
        raise RecordingError(f"never above {machine.current_threshold:g}")
    begin, last = float(current.time[flowing[0]]), float(current.time[-1])
    end = min(float(current.time[flowing[-1]]) + MARGIN_SECONDS, last)
    if disruption >= 0:
        if not begin < disruption <= last + MARGIN_SECONDS:
            raise RecordingError(f"flows from {begin:g} s to {last:g} s, but the shot disrupts at {disruption:g} s")
        end = disruption
    step = machine.step_milliseconds / 1000.0
    steps = int(np.floor((end - begin) / step + 1e-6)) + 1
    if steps < minimum_steps:
        raise RecordingError(f"flows for {steps} steps, which are too few (at least {minimum_steps})")
    if steps > MAX_STEPS:
        raise RecordingError(
            f"flows for {steps:,} steps, which are too many (limit {MAX_STEPS:,}); is the time in seconds?"
        )
    return begin + step * np.arange(steps, dtype=np.float64), end


def _checked(recording: Recording, grid: Array, end: float, signal: SignalFile, points: int) -> NDArray[np.float32]:
    """Values on the grid; raises :class:`RecordingError`."""
    if recording.time[0] > end or recording.time[-1] < grid[0]:
        raise RecordingError(f"recorded from {recording.time[0]:g} s to {recording.time[-1]:g} s, not in the shot")
    with np.errstate(over="ignore"):
        values = resample(recording, grid, signal.shift_milliseconds / 1000.0, points)
    if not np.isfinite(values).all():
        raise RecordingError("a value beyond the range of 32-bit numbers")
    if len(grid) > 1 and (values == values[:1]).all():
        raise RecordingError("flat during the whole shot")
    return values


def write_shots(folder: Path, source: ShotSource, name: str, current: str, current_threshold: float) -> Machine:
    """Write the shots of a source as raw text files, a description and a shot list; returns the description.

    The numbers survive the way there and back (9 digits hold any float32). A missing signal gets no file. The folder
    must be empty or absent, and appears only when it is complete.
    """
    machine = Machine(
        name=name,
        step_milliseconds=source.step_milliseconds,
        profile_points=source.profile_points,
        current=current,
        current_threshold=current_threshold,
        scalars=[SignalFile(name=s.name, folder=s.name, unit=s.unit, meaning=s.meaning) for s in source.scalar_signals],
        profiles=[
            SignalFile(name=s.name, folder=s.name, unit=s.unit, meaning=s.meaning) for s in source.profile_signals
        ],
    )
    with new_folder(folder) as partial:
        _write_text(partial, source, machine)
        write_machine(partial, machine)
    return machine


def _write_text(folder: Path, source: ShotSource, machine: Machine) -> None:
    signals = machine.scalars + machine.profiles
    for signal in signals:
        signal_path(folder, machine, signal, 0).parent.mkdir(parents=True, exist_ok=True)
    even = np.linspace(0.0, 1.0, source.profile_points)
    listed = []
    for index in range(len(source.lengths)):
        shot = source.shot(index)
        time = np.arange(shot.steps) * source.step_milliseconds / 1000.0
        for position, signal in enumerate(signals):
            if shot.missing[position]:
                continue
            if position < len(machine.scalars):
                table = np.column_stack([time, shot.scalars[:, position]])
            else:
                values = shot.profiles[:, position - len(machine.scalars)]
                coordinates = np.broadcast_to(even, values.shape)
                table = np.column_stack([np.tile(time, 2), np.concatenate([coordinates, values])])
            np.savetxt(signal_path(folder, machine, signal, shot.number), table, fmt="%.9g")
        listed.append(f"{shot.number} {time[-1] if shot.disruptive else -1:.9g}\n")
    (folder / SHOT_LIST).write_text("".join(listed), encoding="utf-8")
