"""idx files and CIFAR-10: pixels in their places, labels, scaling, and files that are damaged or mean harm."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dist_mp.data.images import CIFAR_FOLDER, IDX_FILES, cifar_dataset, idx_dataset, read_idx
from dist_mp.errors import UserError

FASHION = Path("/usr/share/datasets/fashion-mnist")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def pixels(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 4, 3), np.uint8), (np.arange(count) % 3).astype(np.uint8)


def write_idx(folder: Path, end: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    arrays = (*pixels(60, 1), *pixels(9, 2))
    for name, array in zip(IDX_FILES, arrays, strict=True):
        (folder / f"{name}{end}").write_bytes(gzip.compress(idx(array)) if end else idx(array))
    return folder


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_images_as_rows(tmp_path: Path, end: str) -> None:
    dataset = idx_dataset(write_idx(tmp_path / "m", end))
    assert [len(s.labels) for s in (dataset.train, dataset.valid, dataset.test)] == [54, 6, 9]
    assert (dataset.spec.length, dataset.spec.channels, dataset.spec.width, dataset.spec.classes) == (4, 3, 3, 3)
    batch = next(dataset.test.batches(0, 9, 3, 6))
    images, labels = pixels(9, 2)
    assert batch.inputs.shape == (6, 4, 3)
    assert batch.inputs.dtype == np.float32
    assert batch.targets[:, 3].tolist() == labels[3:].tolist()
    assert batch.weight.sum() == 6
    kept = np.concatenate([dataset.train.sequences[i].ravel() for i in range(54)])
    assert abs(kept.mean()) < 1e-5
    assert abs(kept.std() - 1) < 1e-4
    # The same line for all pixels: test images are scaled like the training images.
    slope, offset = np.polyfit(images[3:].ravel(), batch.inputs.ravel(), 1)
    np.testing.assert_allclose(batch.inputs, images[3:] * slope + offset, atol=1e-4)
    assert "54 / 6 / 9 samples (train / valid / test), images of 4 x 3 x 1, 3 classes" in dataset.describe()


WHOLE = idx(pixels(5, 1)[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file; it begins with "),
        (b"\x89PNG\r\n", "not an idx file; it begins with 89 50 4e 47"),
        (b"\0\0\x0d\1" + b"\0" * 8, "idx type 0d with 1 dimensions"),
        (b"\0\0\x08\x09" + b"\0" * 60, "idx type 08 with 9 dimensions"),
        (WHOLE[:-1], "announces 5 x 4 x 3 values and holds 59; is the download complete"),
        (WHOLE + b"x", "announces 5 x 4 x 3 values and holds 61"),
        (WHOLE[:9], "announces 5 x 1 values|announces"),
        (b"\0\0\x08\x04" + b"\xff" * 16 + b"x", "announces 4294967295 x 4294967295 x 4294967295 x 4294967295 values"),
        (gzip.compress(WHOLE)[:-9], "not a complete gzip file"),
        (gzip.compress(WHOLE)[:-8] + b"\0" * 8, "cannot be read: CRC check failed"),
    ],
)
def test_bad_idx_files_get_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.gz").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_idx(tmp_path / "bad.gz")
    assert str(caught.value).isprintable()
    assert "bad.gz" in str(caught.value)


def test_idx_files_that_do_not_fit_together(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "m")
    (folder / IDX_FILES[3]).write_bytes(idx(np.zeros(8, np.uint8)))
    with pytest.raises(UserError, match=r"images \(9, 4, 3\) do not belong to labels \(8,\)"):
        idx_dataset(folder)
    (folder / IDX_FILES[3]).write_bytes(idx(np.full(9, 7, np.uint8)))
    with pytest.raises(UserError, match="a test class is outside 0 to 2"):
        idx_dataset(folder)
    write_idx(folder)
    (folder / IDX_FILES[1]).write_bytes(idx(np.repeat([0, 2], 30).astype(np.uint8)))
    with pytest.raises(UserError, match="no training samples of class '1'"):
        idx_dataset(folder)
    (folder / IDX_FILES[0]).unlink()
    with pytest.raises(UserError, match=r"no file train-images-idx3-ubyte or"):
        idx_dataset(folder)


def record(label: int, seed: int) -> bytes:
    """One image: red 10, green 20, blue 30 but for one pixel."""
    planes = np.repeat(np.array([10, 20, 30], np.uint8), 1024).reshape(3, 32, 32)
    planes[:, seed % 32, 5] = [1, 2, 3]
    return bytes([label]) + planes.tobytes()


def cifar_files() -> dict[str, bytes]:
    train = {f"data_batch_{i}.bin": b"".join(record(c, i) for c in range(10)) for i in range(1, 6)}
    return train | {"test_batch.bin": b"".join(record(c, 9) for c in range(10))}


def write_tar(
    path: Path, files: dict[str, bytes], change: Callable[[tarfile.TarInfo], object] = lambda info: None
) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"{CIFAR_FOLDER}/{name}")
            info.size = len(raw)
            change(info)
            archive.addfile(info, io.BytesIO(raw))
    return path


def test_cifar_as_folder_and_archive(tmp_path: Path) -> None:
    folder = tmp_path / CIFAR_FOLDER
    folder.mkdir()
    for name, raw in cifar_files().items():
        (folder / name).write_bytes(raw)
    archive = write_tar(tmp_path / "c.tar.gz", cifar_files())
    for path in (tmp_path, folder, archive):
        dataset = cifar_dataset(path)
        assert [len(s.labels) for s in (dataset.train, dataset.valid, dataset.test)] == [40, 10, 10]
        assert (dataset.spec.length, dataset.spec.width, dataset.spec.channels) == (32, 32, 96)
        image = dataset.test.sequences[4].reshape(32, 32, 3)
        assert (image[0, 0] > image[9, 5]).all()
        assert (image[8, 5] == image[0, 0]).all()
        assert dataset.test.labels.tolist() == list(range(10))
        assert dataset.classes[3] == "cat"


def rename(name: str) -> Callable[[tarfile.TarInfo], object]:
    return lambda info: setattr(info, "name", name) if info.name.endswith("test_batch.bin") else None


def link(info: tarfile.TarInfo) -> None:
    info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0


@pytest.mark.parametrize(
    ("files", "change", "message"),
    [
        ({"test_batch.bin": record(3, 1)[:-1]}, None, "test_batch.bin: 3,072 bytes are not a whole number of images"),
        ({"test_batch.bin": record(11, 1)}, None, "test_batch.bin: image 0 is of class 11"),
        ({"test_batch.bin": b""}, None, "test_batch.bin: 0 bytes are not"),
        ({}, rename("../../test_batch.bin"), "'../../test_batch.bin' is not a file of cifar-10-batches-bin"),
        ({}, rename("/etc/test_batch.bin"), "'/etc/test_batch.bin' is not a file of"),
        ({}, rename(f"{CIFAR_FOLDER}/data_batch_1.bin"), "holds data_batch_1.bin twice"),
        ({}, rename("elsewhere.bin"), "no test_batch.bin; the binary version"),
        ({}, link, "is not a file of cifar-10-batches-bin"),
    ],
)
def test_hostile_archives(tmp_path: Path, files: dict[str, bytes], change: object, message: str) -> None:
    path = write_tar(tmp_path / "c.tar.gz", cifar_files() | files, change or (lambda info: None))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message) as caught:
        cifar_dataset(path)
    assert str(caught.value).isprintable()
    assert [p.name for p in tmp_path.iterdir()] == ["c.tar.gz"]


def test_damaged_archives(tmp_path: Path) -> None:
    raw = write_tar(tmp_path / "c.tar.gz", cifar_files()).read_bytes()
    for content in (b"", b"junk" * 99, raw[: len(raw) // 2]):
        (tmp_path / "c.tar.gz").write_bytes(content)
        with pytest.raises(UserError, match="not a readable tar archive"):
            cifar_dataset(tmp_path / "c.tar.gz")
    with pytest.raises(UserError, match=r"none: not a readable tar archive \(No such file"):
        cifar_dataset(tmp_path / "none")


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist() -> None:
    dataset = idx_dataset(FASHION)
    assert [len(s.labels) for s in (dataset.train, dataset.valid, dataset.test)] == [54_000, 6_000, 10_000]
    assert np.bincount(dataset.test.labels).tolist() == [1000] * 10
