"""Labelled samples as NumPy arrays: one `.npz`, or a folder of `.npy` files, which are memory-mapped.

Names: x_train, y_train, x_test and y_test, as in the files of Keras. `x` is uint8 [N, H, W] or [N, H, W, colours]:
images; other numbers [N, L, F]: series; whole numbers [N, L], or an array of lists as in Keras's `imdb.npz`: words,
the most frequent first. `y` is a whole number from 0 on.
"""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.data_pickle import MAX_BYTES, as_array, objects, unpickle
from dist_mp.data.labelled import Labelled, LabelledDataset
from dist_mp.errors import UserError

NAMES = ("x_train", "y_train", "x_test", "y_test")
UNKNOWN_WORD = 0
"""What a word beyond the vocabulary becomes; no file of Keras uses this number."""


def array_dataset(
    path: Path,
    max_words: int = 20_000,
    max_length: int | None = 400,
    validation_fraction: float = 0.1,
    order_seed: int = 1,
) -> LabelledDataset:
    """Read a file or folder; refuses arrays of other shapes and types, and pickles of anything but lists of numbers."""
    arrays = {name: _load(path, name) for name in NAMES}
    labels = {part: _labels(path, part, arrays[f"y_{part}"], len(arrays[f"x_{part}"])) for part in ("train", "test")}
    samples = {part: arrays[f"x_{part}"] for part in ("train", "test")}
    kinds = {part: _kind(f"{path}: x_{part}", known) for part, known in samples.items()}
    if kinds["train"] != kinds["test"]:
        raise UserError(f"{path}: x_train holds {kinds['train']}, x_test {kinds['test']}")
    words = kinds["train"] == "words"
    if words:
        samples = {part: _words(f"{path}: x_{part}", known, max_words) for part, known in samples.items()}
        size = 1 + max(max((int(s.max()) for s in known if len(s)), default=0) for known in samples.values())
    count = int(max(known.max(initial=0) for known in labels.values())) + 1
    return LabelledDataset(
        str(path),
        Labelled(samples["train"], labels["train"]),
        Labelled(samples["test"], labels["test"]),
        [str(label) for label in range(count)],
        max_length=max_length if words else None,
        validation_fraction=validation_fraction,
        order_seed=order_seed,
        vocabulary=size if words else 0,
    )


def sample_arrays(path: Path, part: str, max_words: int | None) -> tuple[Any, NDArray[np.int32] | None]:
    """Samples of one part with their labels, None where there are none; words where `max_words` is given.

    A single `.npy` file holds samples without labels.
    """
    if path.suffix == ".npy":
        samples, labels = _mapped(path, path.name), None
    else:
        samples = _load(path, f"x_{part}")
        absent = path.is_dir() and not (path / f"y_{part}.npy").is_file()
        labels = None if absent else _labels(path, part, _load(path, f"y_{part}"), len(samples))
    where = f"{path}: x_{part}"
    kind = _kind(where, samples)
    if (kind == "words") != (max_words is not None):
        raise UserError(f"{where} holds {kind}, which is not what the model was trained on")
    return samples if max_words is None else _words(where, samples, max_words), labels


def _labels(path: Path, part: str, y: Any, count: int) -> NDArray[np.int32]:
    whole = isinstance(y, np.ndarray) and y.dtype.kind in "iub" and y.size == count and y.ndim in (1, 2)
    if not whole:
        raise UserError(f"{path}: y_{part} must be {count} whole numbers, one a sample of x_{part}")
    if count and not 0 <= int(y.min()) <= int(y.max()) < 100_000:
        raise UserError(f"{path}: y_{part} holds classes {int(y.min())} to {int(y.max())}; they begin with 0")
    return np.asarray(y).reshape(-1).astype(np.int32)


def _mapped(path: Path, name: str) -> np.ndarray:
    try:
        found: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
        raise UserError(f"{path}: {name} cannot be read: {reason}") from error
    return found


def _kind(where: str, samples: Any) -> str:
    if not len(samples):
        raise UserError(f"{where}: no samples")
    if isinstance(samples, list) or (samples.ndim == 2 and samples.dtype.kind in "iu"):
        return "words"
    if samples.dtype == np.uint8 and samples.ndim in (3, 4):
        return f"images of {' x '.join(map(str, samples.shape[1:3]))}"
    if samples.ndim == 3 and samples.dtype.kind in "iuf" and samples.size:
        for begin in range(0, len(samples), 256):
            # Not NaN either: a comparison with it is false.
            fine = np.abs(samples[begin : begin + 256]) <= np.finfo(np.float32).max
            if not fine.all():
                row = begin + int(np.flatnonzero(~fine.all(axis=(1, 2)))[0])
                raise UserError(f"{where}: sample {row} holds a number that is not finite in 32 bits")
        return f"series of {samples.shape[2]} channels"
    raise UserError(
        f"{where}: {samples.dtype} {samples.shape}; images are uint8 [N, H, W(, C)], series [N, L, F], words [N, L]"
    )


def _words(where: str, samples: Any, max_words: int) -> list[NDArray[np.int32]]:
    encoded = []
    for row, sample in enumerate(samples):
        try:
            numbers = np.asarray(as_array(sample)) if len(sample) else np.zeros(0, np.int64)
            if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or (len(numbers) and numbers.min() < 0):
                raise ValueError
        except (ValueError, TypeError, pickle.UnpicklingError) as error:
            raise UserError(f"{where}: sample {row} is not a list of word numbers from 0 on") from error
        encoded.append(np.where(numbers < max_words, numbers, UNKNOWN_WORD).astype(np.int32))
    return encoded


def _load(path: Path, name: str) -> Any:
    """An array of numbers, or a list of lists."""
    try:
        if path.is_dir():
            found: np.ndarray = np.lib.format.open_memmap(path / f"{name}.npy", mode="r")
            return found
        with zipfile.ZipFile(path) as archive:
            entry = archive.getinfo(f"{name}.npy")
            if entry.file_size > MAX_BYTES:
                raise ValueError(f"{entry.file_size:,} bytes are too many; unpack the file, a folder is memory-mapped")
            return parse_npy(archive.read(entry))
    except KeyError as error:
        raise UserError(f"{path}: holds no {name}; expected are {', '.join(NAMES)}") from error
    except pickle.UnpicklingError as error:
        raise UserError(f"{path}: {name}: a pickle that is not lists of numbers: {error}") from error
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
        raise UserError(f"{path}: {name} cannot be read: {reason}") from error


def parse_npy(raw: bytes, packages: tuple[str, ...] = (), trust: bool = False) -> Any:
    """An array in the `.npy` format, or what the pickle in its place holds, read as data.

    Raises `ValueError` and `EOFError` for other contents, `pickle.UnpicklingError` for pickles of other things.
    """
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f".npy version {version}")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(stream)
    rest = stream.read()
    if dtype.hasobject:
        return objects(unpickle(rest, packages, trust))
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
