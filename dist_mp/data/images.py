"""Images: MNIST and Fashion-MNIST as idx files, CIFAR-10 as its binary files or the archive of them."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.labelled import Labelled, LabelledDataset
from dist_mp.errors import UserError

MAX_BYTES = 1 << 31

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR_TEST = "test_batch.bin"
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_RECORD = 1 + 3 * 32 * 32


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of bytes in an idx file, as it is or gzipped (LeCun, Cortes and Burges, the MNIST page).

    Two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as 4 bytes with the highest
    first, and the values.
    """
    raw = _read(path)
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise UserError(f"{path}: not an idx file; it begins with {raw[:4].hex(' ')}, not with 00 00")
    if raw[2] != 8 or not 1 <= raw[3] <= 4:
        raise UserError(f"{path}: idx type {raw[2]:02x} with {raw[3]} dimensions; bytes (08) with 1 to 4 are read")
    begin = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, min(begin, len(raw)), 4)]
    # In Python's integers: the product of what a header announces may exceed 64 bits.
    expected = 1
    for size in shape:
        expected *= size
    if len(raw) != begin + expected:
        sizes = " x ".join(map(str, shape))
        raise UserError(
            f"{path}: announces {sizes} values and holds {max(len(raw) - begin, 0):,}; is the download complete?"
        )
    return np.frombuffer(raw, np.uint8, offset=begin).reshape(shape)


def _read(path: Path) -> bytes:
    """A file of at most 2 GiB, unpacked if gzipped."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a complete gzip file ({error}); is the download complete?") from error
    if len(raw) > MAX_BYTES:
        raise UserError(f"{path}: holds more than {MAX_BYTES >> 30} GiB")
    return raw


def idx_dataset(folder: Path, validation_fraction: float = 0.1, order_seed: int = 1) -> LabelledDataset:
    """The four files of MNIST or Fashion-MNIST in a folder, gzipped or not."""
    training, test = (Labelled(*_idx_pair(folder, part)) for part in ("train", "test"))
    if training.samples.shape[1:] != test.samples.shape[1:]:
        shapes = training.samples.shape[1:], test.samples.shape[1:]
        raise UserError(f"{folder}: training images are {shapes[0]}, test images {shapes[1]}")
    classes = [str(label) for label in range(int(training.labels.max()) + 1)]
    return LabelledDataset(
        str(folder), training, test, classes, validation_fraction=validation_fraction, order_seed=order_seed
    )


def _idx_pair(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images and labels of the training or the test files."""
    arrays = []
    for name in IDX_FILES[:2] if part == "train" else IDX_FILES[2:]:
        found = [folder / f"{name}{end}" for end in ("", ".gz") if (folder / f"{name}{end}").is_file()]
        if not found:
            raise UserError(f"{folder}: no file {name} or {name}.gz")
        arrays.append(read_idx(found[0]))
    images, labels = arrays
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not images.size:
        name = IDX_FILES[0 if part == "train" else 2]
        raise UserError(f"{folder}: {name}: images {images.shape} do not belong to labels {labels.shape}")
    return images, labels.astype(np.int32)


def idx_part(path: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int32] | None]:
    """Images and labels of one part of a folder, or the images of one file, without labels."""
    if path.is_dir():
        return _idx_pair(path, part)
    images = read_idx(path)
    if images.ndim != 3 or not images.size:
        raise UserError(f"{path}: holds {images.shape}; images [N, H, W] are expected")
    return images, None


def cifar_part(path: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images and labels of one part of CIFAR-10."""
    batches = _cifar_folder(path) if path.is_dir() else _cifar_archive(path)
    labelled = _cifar_labelled(path, batches, CIFAR_TRAIN if part == "train" else (CIFAR_TEST,))
    return labelled.samples, labelled.labels


def cifar_dataset(path: Path, validation_fraction: float = 0.1, order_seed: int = 1) -> LabelledDataset:
    """CIFAR-10, binary version (Krizhevsky 2009): the folder `cifar-10-batches-bin`, or the archive that holds it."""
    batches = _cifar_folder(path) if path.is_dir() else _cifar_archive(path)
    parts = [_cifar_labelled(path, batches, names) for names in (CIFAR_TRAIN, (CIFAR_TEST,))]
    return LabelledDataset(
        str(path), parts[0], parts[1], CIFAR_CLASSES, validation_fraction=validation_fraction, order_seed=order_seed
    )


def _cifar_labelled(path: Path, batches: Mapping[str, bytes], names: Sequence[str]) -> Labelled:
    missing = [name for name in names if name not in batches]
    if missing:
        raise UserError(f"{path}: no {missing[0]}; the binary version of CIFAR-10 is expected")
    records = np.concatenate([_cifar_records(f"{path}: {name}", batches[name]) for name in names])
    # Stored plane by plane: red, green, blue.
    images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return Labelled(images, records[:, 0].astype(np.int32))


def _cifar_records(where: str, raw: bytes) -> NDArray[np.uint8]:
    if not raw or len(raw) % _CIFAR_RECORD:
        raise UserError(f"{where}: {len(raw):,} bytes are not a whole number of images; is the download complete?")
    records = np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_RECORD)
    wrong = np.flatnonzero(records[:, 0] > 9)
    if len(wrong):
        raise UserError(f"{where}: image {int(wrong[0])} is of class {int(records[wrong[0], 0])}; there are 0 to 9")
    return records


def _cifar_folder(path: Path) -> dict[str, bytes]:
    root = path / CIFAR_FOLDER if (path / CIFAR_FOLDER).is_dir() else path
    return {name: _read(root / name) for name in (*CIFAR_TRAIN, CIFAR_TEST) if (root / name).is_file()}


def _cifar_archive(path: Path) -> dict[str, bytes]:
    """The batches in the archive, read in memory from front to back; nothing is written to disk."""
    batches: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.name not in (*CIFAR_TRAIN, CIFAR_TEST):
                    continue
                if not member.isreg() or name.parent.name != CIFAR_FOLDER or len(name.parts) != 2:
                    raise UserError(f"{path}: {member.name[:80]!r} is not a file of {CIFAR_FOLDER}")
                if member.size > MAX_BYTES:
                    raise UserError(f"{path}: {member.name!r}: {member.size:,} bytes are too much")
                if name.name in batches:
                    raise UserError(f"{path}: holds {name.name} twice")
                stream = archive.extractfile(member)
                batches[name.name] = stream.read() if stream is not None else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: not a readable tar archive ({reason}); is the download complete?") from error
    return batches
