"""Imports the processed shots of FRNN (plasma-python): an `.npz` a shot, with its signals in a pickled dictionary.

MACHINE_NUMBER.npz holds `valid` and `is_disruptive` (bool), `ttd` ([T], log10 of the seconds left to the end of the
shot, plus a tenth of a step) and `signals_dict`, from a `Signal` to its values [T, channels], all on one time grid
(`Shot.save` in `plasma/primitives/shots.py`).
"""

from __future__ import annotations

import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.arrays import parse_npy
from dist_mp.data.data_pickle import MAX_BYTES, Record, as_array
from dist_mp.data.processed import Preparation, Progress, ShotFormat, write_processed
from dist_mp.data.raw import ShotRefusedError
from dist_mp.data.shot import Shot, Signal
from dist_mp.errors import UserError

_FILE = re.compile(r"(?:(?P<machine>.+)_)?(?P<number>\d+)\.npz")
_PACKAGES = ("plasma",)

Signals = dict[str, NDArray[np.float32]]


def import_frnn(
    folder: Path,
    out: Path,
    step_milliseconds: float = 1.0,
    trust_pickle: bool = False,
    minimum_steps: int = 100,
    progress: Progress | None = None,
) -> Preparation:
    """Write the shots in `folder` as prepared shots to `out`.

    The pickles in the files are read as data, without running them (:mod:`dist_mp.data.data_pickle`); `trust_pickle`
    runs them with the rights of the user. All shots have the signals of the first one that can be used. A signal that
    is zero during a whole shot counts as missing in it: so FRNN fills what it does not find.
    """
    files = _list(folder)

    def read(number: int) -> tuple[bool, Signals]:
        return _read(files[number], step_milliseconds, trust_pickle)

    shared = _shared_format(files, read, step_milliseconds)
    if shared is None:  # Every shot is refused: let the report say why.
        shared = ShotFormat((), (), 0, step_milliseconds)

    def shot(number: int) -> Shot:
        disruptive, signals = read(number)
        return _shot(number, disruptive, signals, shared, minimum_steps)

    return write_processed(out, shared, list(files), shot, str(folder), progress)


def _list(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; it holds the .npz files of processed shots")
    files: dict[int, Path] = {}
    for path in sorted(folder.glob("*.npz")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise UserError(f"{path}: its name has no shot number; MACHINE_NUMBER.npz is expected")
        number = int(match["number"])
        if number > np.iinfo(np.int64).max:
            raise UserError(f"{path}: {number} is not the number of a shot")
        if number in files:
            raise UserError(f"{path}: shot {number} is also in {files[number].name}; import one machine at a time")
        files[number] = path
    if not files:
        raise UserError(f"{folder}: holds no .npz files")
    return dict(sorted(files.items()))


def _shared_format(files: Mapping[int, Path], read: Any, step_milliseconds: float) -> ShotFormat | None:
    for number in files:
        try:
            _, signals = read(number)
        except ShotRefusedError:
            continue
        points = {values.shape[1] for values in signals.values()} - {1}
        if len(points) > 1:
            raise UserError(f"{files[number]}: profiles of {sorted(points)} points; all must have the same number")
        scalars = tuple(Signal(name, "", name) for name, values in signals.items() if values.shape[1] == 1)
        profiles = tuple(Signal(name, "", name) for name, values in signals.items() if values.shape[1] > 1)
        return ShotFormat(scalars, profiles, max(points, default=1), step_milliseconds)
    return None


def _read(path: Path, step_milliseconds: float, trust_pickle: bool) -> tuple[bool, Signals]:
    """Class and signals of a file; raises :class:`ShotRefusedError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            valid = bool(_member(archive, "valid", trust_pickle).all()) if "valid.npy" in archive.namelist() else True
            disruptive = bool(_member(archive, "is_disruptive", trust_pickle).all())
            ttd = _member(archive, "ttd", trust_pickle)
            held = _member(archive, "signals_dict", trust_pickle)
        if not valid:
            raise ShotRefusedError({"": "FRNN marks it as not valid"})
        signals = _signals(held)
        steps = {len(values) for values in signals.values()} | {ttd.size}
        if len(steps) != 1:
            raise ShotRefusedError({"": f"signals and ttd have different numbers of steps, {sorted(steps)}"})
    except OSError as error:
        raise ShotRefusedError({"": f"cannot be read: {error.strerror or error}"}) from error
    except pickle.UnpicklingError as error:
        advice = "" if trust_pickle else "; --trust-pickle runs it as a program"
        raise ShotRefusedError({"": f"its pickle is not read: {error}{advice}"}) from error
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, zlib.error, NotImplementedError) as error:
        raise ShotRefusedError({"": f"not a processed shot ({' '.join(str(error).split())[:120]})"}) from error
    for name, values in signals.items():
        if not np.isfinite(values).all():
            raise ShotRefusedError({name: "a value is not a finite number"})
    if disruptive and ttd.size > 1:
        seconds = 10.0 ** ttd.ravel()[[-2, -1]].astype(np.float64)
        step = 1000.0 * (seconds[0] - seconds[1])
        if not abs(step - step_milliseconds) < 0.05 * step_milliseconds:
            raise ShotRefusedError({"": f"its steps are of {step:.3g} ms by its ttd, not of {step_milliseconds:g} ms"})
    return disruptive, signals


def _member(archive: zipfile.ZipFile, name: str, trust_pickle: bool) -> Any:
    """An array of the file, or what the pickle in its place holds."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.file_size > MAX_BYTES:
        raise ValueError(f"{name}: {entry.file_size:,} bytes are too many for a shot (limit {MAX_BYTES:,})")
    return parse_npy(archive.read(entry), _PACKAGES, trust_pickle)


def _signals(held: Any) -> Signals:
    """Signals by name in the order of the file; numpy pickles an array of one object, or the object itself."""
    known = held
    if isinstance(known, np.ndarray) and known.dtype == object and known.size == 1:
        known = known.item()
    if not isinstance(known, dict) or not known:
        raise ValueError("signals_dict is not a dictionary of signals")
    signals: Signals = {}
    for key, value in known.items():
        name = _name(key)
        values = np.asarray(as_array(value))
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or not values.size or name in signals:
            raise ValueError(f"signal {name}: its values {values.shape} are not [T, channels], or it is there twice")
        with np.errstate(over="ignore"):
            signals[name] = values.astype(np.float32)
    return signals


def _name(key: Any) -> str:
    text = key if isinstance(key, str) else getattr(key, "description", None)
    if not isinstance(key, str | Record) or not isinstance(text, str):
        raise ValueError("signals_dict has a key that is neither a text nor a Signal")
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60] or "signal"


def _shot(number: int, disruptive: bool, signals: Signals, shared: ShotFormat, minimum_steps: int) -> Shot:
    known = [(signal.name, 1) for signal in shared.scalars]
    known += [(signal.name, shared.profile_points) for signal in shared.profiles]
    held = {name: values.shape[1] for name, values in signals.items()}
    if held != dict(known):
        differ = sorted({name for name, _ in held.items() ^ dict(known).items()})
        raise ShotRefusedError({"": f"its signals differ from those of the first shot: {', '.join(differ)[:120]}"})
    columns = [signals[name] for name, _ in known]
    steps = len(columns[0])
    if steps < minimum_steps:
        raise ShotRefusedError({"": f"{steps} steps are too few (at least {minimum_steps})"})
    missing = [not values.any() for values in columns]
    flat = [
        name
        for (name, _), values, lost in zip(known, columns, missing, strict=True)
        if not lost and steps > 1 and (values == values[:1]).all()
    ]
    if flat:
        raise ShotRefusedError(dict.fromkeys(flat, "flat during the whole shot"))
    count = len(shared.scalars)
    profiles = np.zeros((steps, 0, shared.profile_points), np.float32)
    return Shot(
        number=number,
        disruptive=disruptive,
        scalars=np.concatenate([*columns[:count], np.zeros((steps, 0), np.float32)], axis=1),
        profiles=np.stack(columns[count:], axis=1) if len(columns) > count else profiles,
        missing=np.array(missing),
    )
