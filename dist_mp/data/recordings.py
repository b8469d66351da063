"""Recorded signals of shots, as they come from a machine: text files as FRNN reads them, HDF5 or Zarr.

Text (the folder layout of :mod:`dist_mp.data.machine`): column 0 is the time (s), then the channel. The file of a
profile has 2 T rows for T times: in the first T rows the coordinates of its channels, in the last T their values.

Arrays: the folder holds `machine.yaml` and `shots.h5` or `shots.zarr`, with these groups and arrays:

    NUMBER                      a group a shot; attribute t_disrupt: time of disruption (s), -1 if clean
    NUMBER/SIGNAL/time          [T], s
    NUMBER/SIGNAL/values        [T], of a profile [T, channels]
    NUMBER/SIGNAL/coordinates   [T, channels] or [channels], of a profile only

SIGNAL is the `folder` of the signal in `machine.yaml`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.machine import SHOT_LIST, Machine, SignalFile, read_shot_list, shot_time
from dist_mp.errors import UserError

MAX_FILE_BYTES = 1 << 30
MAX_VALUES = 1 << 28

Array = NDArray[np.float64]


class RecordingError(Exception):
    """A recording that cannot be used; the message says why."""


@dataclass(frozen=True)
class Recording:
    """One signal of one shot as it was recorded."""

    time: Array
    """[T], s, strictly rising"""
    values: Array
    """[T, channels]"""
    coordinates: Array | None = None
    """[T, channels], of a profile only"""

    def __post_init__(self) -> None:
        """Raises :class:`RecordingError` for anything but finite numbers at rising times."""
        if not len(self.time):
            raise RecordingError("no values")
        for name, array in (("time", self.time), ("value", self.values), ("coordinate", self.coordinates)):
            if array is not None and not np.isfinite(array).all():
                bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                raise RecordingError(f"{name} is not a finite number in row {int(np.flatnonzero(bad)[0]) + 1}")
        backwards = np.flatnonzero(np.diff(self.time) <= 0)
        if len(backwards):
            row = int(backwards[0])
            raise RecordingError(f"time runs backwards or stands still after row {row + 1}, at {self.time[row]:g} s")


class Recordings(Protocol):
    """Where the recordings of a machine's shots come from."""

    @property
    def shots(self) -> Mapping[int, float]:
        """Time of disruption (s) by shot number, -1 where the shot is clean."""
        ...

    def read(self, signal: SignalFile, profile: bool, shot: int) -> Recording | None:
        """One recording, None where there is none; raises :class:`RecordingError`."""
        ...


def open_recordings(folder: Path, machine: Machine) -> Recordings:
    """The recordings in a raw folder: arrays where `shots.h5` or `shots.zarr` lies there, text files otherwise."""
    found = [folder / name for name in ("shots.h5", "shots.zarr") if (folder / name).exists()]
    if len(found) > 1:
        raise UserError(f"{folder}: holds shots.h5 and shots.zarr; which one counts? Remove the other")
    if found:
        return ArrayRecordings(found[0])
    return TextRecordings(folder, machine)


def signal_path(folder: Path, machine: Machine, signal: SignalFile, shot: int) -> Path:
    """Where the text file of a signal of a shot is."""
    return folder / "signal_data" / machine.name / signal.folder / f"{shot}.txt"


class TextRecordings:
    """Text files in the layout of FRNN."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        """Read the shot list."""
        self.shots = read_shot_list(folder / SHOT_LIST)
        self._folder, self._machine = folder, machine
        if not (folder / "signal_data" / machine.name).is_dir():
            raise UserError(f"{folder}: no folder signal_data/{machine.name}, which holds the signals of its shots")

    def read(self, signal: SignalFile, profile: bool, shot: int) -> Recording | None:
        """See :class:`Recordings`."""
        path = signal_path(self._folder, self._machine, signal, shot)
        return read_text(path, profile) if path.is_file() else None


def read_text(path: Path, profile: bool) -> Recording:
    """Read the file of one signal; raises :class:`RecordingError`."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise RecordingError(f"{size:,} bytes are too much for a signal (limit 1 GiB)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Of an empty file, which is refused below.
            table = np.loadtxt(path, dtype=np.float64, ndmin=2, encoding="utf-8-sig")
    except OSError as error:
        raise RecordingError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        reason = " ".join(str(error).split(";")[0].split())[:120]
        raise RecordingError(f"not a table of numbers ({reason})") from error
    if not table.size:
        raise RecordingError("an empty file")
    if table.shape[1] < 2:
        raise RecordingError("a single column; time and values are needed")
    if not profile:
        if table.shape[1] != 2:
            raise RecordingError(f"{table.shape[1] - 1} channels where a scalar signal has one")
        return Recording(table[:, 0], table[:, 1:])
    if len(table) % 2:
        raise RecordingError(f"{len(table)} rows; a profile has as many rows of coordinates as of values")
    half = len(table) // 2
    if not np.array_equal(table[:half, 0], table[half:, 0], equal_nan=True):
        raise RecordingError("the times of coordinates and values differ")
    return Recording(table[half:, 0], table[half:, 1:], table[:half, 1:])


class ArrayRecordings:
    """Arrays of an HDF5 file or a Zarr group; needs h5py or zarr (extra `formats`)."""

    def __init__(self, path: Path) -> None:
        """Open the file for reading and list its shots."""
        self._root = _open_group(path)
        self.shots: dict[int, float] = {}
        for name in self._root:
            where = f"{path}: group {str(name)[:40]!r}"
            try:
                number, disruption = int(name), float(self._root[name].attrs["t_disrupt"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{where}: a shot is a group named by its number with attribute t_disrupt") from error
            if number < 0 or not shot_time(disruption):
                raise UserError(f"{where}: t_disrupt must be a time in s, or -1 if clean, got {disruption}")
            if number in self.shots:
                raise UserError(f"{where}: shot {number} is there twice")
            self.shots[number] = disruption
        if not self.shots:
            raise UserError(f"{path}: holds no shots")
        self.shots = dict(sorted(self.shots.items()))
        self._names = {int(name): name for name in self._root}

    def read(self, signal: SignalFile, profile: bool, shot: int) -> Recording | None:
        """See :class:`Recordings`."""
        try:
            group = self._root[self._names[shot]]
            if signal.folder not in group:
                return None
            recorded = group[signal.folder]
            time, values = _array(recorded, "time"), _array(recorded, "values")
            coordinates = _array(recorded, "coordinates") if profile else None
        except (KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
            raise RecordingError(f"cannot be read ({' '.join(str(error).split())[:120]})") from error
        if values.ndim == 1 and not profile:
            values = values[:, None]
        if time.ndim != 1 or values.ndim != 2 or len(values) != len(time) or (not profile and values.shape[1] != 1):
            raise RecordingError(f"time {time.shape} and values {values.shape} do not belong together")
        if coordinates is not None:
            if coordinates.shape not in (values.shape, values.shape[1:]):
                raise RecordingError(
                    f"coordinates {coordinates.shape} and values {values.shape} do not belong together"
                )
            coordinates = np.broadcast_to(coordinates, values.shape)
        return Recording(time, values, coordinates)


def _open_group(path: Path) -> Any:
    package = "h5py" if path.suffix == ".h5" else "zarr"
    try:
        library = importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{path}: needs the package {package}; pip install 'dist-mp[formats]'") from error
    try:
        return library.File(path, "r") if package == "h5py" else library.open_group(str(path), mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be opened with {package}: {' '.join(str(error).split())[:120]}") from error


def _array(group: Any, name: str) -> Array:
    stored = group[name]
    if stored.dtype.kind not in "iuf":
        raise RecordingError(f"{name}: values of type {stored.dtype} are not real numbers")
    if stored.size > MAX_VALUES:
        raise RecordingError(f"{name}: {stored.size:,} values are too many for a signal (limit {MAX_VALUES:,})")
    return np.asarray(stored[...], np.float64)
