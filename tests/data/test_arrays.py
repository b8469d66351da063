"""npz and npy: images, series and words, Keras's imdb.npz without running its pickle, and bad files."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from dist_mp.data.arrays import array_dataset
from dist_mp.errors import UserError

RNG = np.random.default_rng(3)


def labels(count: int) -> np.ndarray:
    return np.arange(count) % 2


def imdb(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    lists = np.empty(count, object)
    for i in range(count):
        lists[i] = [1 + i % 2, *rng.integers(1, 40, i % 5).tolist()]
    return lists


def test_the_layout_of_keras_imdb(tmp_path: Path) -> None:
    path = tmp_path / "imdb.npz"
    x_train, x_test = imdb(40, 1), imdb(10, 2)
    np.savez_compressed(path, x_train=x_train, y_train=labels(40), x_test=x_test, y_test=labels(10))
    dataset = array_dataset(path, max_words=30, max_length=4, validation_fraction=0.2)
    assert [len(s.labels) for s in (dataset.train, dataset.valid, dataset.test)] == [32, 8, 10]
    assert dataset.spec.length == 4
    assert 20 < dataset.spec.vocabulary <= 30
    batch = next(dataset.test.batches(0, 10, 0, 10))
    assert batch.inputs.dtype == np.int32
    for row, which in enumerate(batch.sequence.tolist()):
        words = [word if word < 30 else 0 for word in x_test[which]][-4:]
        assert batch.inputs[row, : len(words)].tolist() == words
        assert batch.targets[row, len(words) - 1] == which % 2


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_series_and_images(tmp_path: Path, kind: str) -> None:
    for name, make in (
        ("series", lambda n: RNG.normal(4.0, 3.0, (n, 7, 2))),
        ("images", lambda n: RNG.integers(0, 255, (n, 5, 6, 3), np.uint8)),
    ):
        arrays = {"x_train": make(40), "y_train": labels(40)[:, None], "x_test": make(8), "y_test": labels(8)}
        path = tmp_path / name
        if kind == "npz":
            path = path.with_suffix(".npz")
            np.savez(path, **arrays)
        else:
            path.mkdir()
            for key, array in arrays.items():
                np.save(path / f"{key}.npy", array)
        dataset = array_dataset(path)
        assert [len(s.labels) for s in (dataset.train, dataset.valid, dataset.test)] == [36, 4, 8]
        kept = np.stack([dataset.train.sequences[i] for i in range(36)]).reshape(-1, arrays["x_train"].shape[-1])
        np.testing.assert_allclose(kept.mean(axis=0), 0.0, atol=1e-5)
        np.testing.assert_allclose(kept.std(axis=0), 1.0, atol=1e-4)
        assert dataset.spec.width == (6 if name == "images" else 0)
        assert dataset.spec.channels == (18 if name == "images" else 2)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mknod, (str(self.path),)


GOOD = {"x_train": np.ones((8, 5, 2)) * np.arange(8)[:, None, None], "y_train": labels(8)}
GOOD |= {"x_test": np.ones((4, 5, 2)), "y_test": labels(4)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None}, "holds no x_train; expected are x_train, y_train, x_test, y_test"),
        ({"y_test": labels(3)}, "y_test must be 4 whole numbers"),
        ({"y_test": labels(4) * 0.5}, "y_test must be 4 whole numbers"),
        ({"y_test": labels(4) - 1}, "y_test holds classes -1 to 0"),
        ({"y_test": labels(4) * 10**9}, "y_test holds classes 0 to 1000000000"),
        ({"y_train": np.zeros(8, int)}, "a test class is outside|class '1'"),
        ({"x_train": GOOD["x_train"] + [np.inf, 0]}, "x_train: sample 0 holds a number that is not finite"),
        ({"x_test": np.ones((4, 5, 3))}, "x_train holds series of 2 channels, x_test series of 3 channels"),
        ({"x_test": np.ones((4, 5))}, r"x_test: float64 \(4, 5\); images are uint8"),
        ({"x_test": np.array(["a"] * 4)}, r"x_test: <U1 \(4,\); images are uint8"),
        ({"x_train": np.zeros((0, 5, 2)), "y_train": labels(0)}, "x_train: no samples"),
        ({"x_train": GOOD["x_train"] + 1e300}, "x_train: sample 0 holds a number that is not finite in 32 bits"),
        ({"x_train": GOOD["x_train"] + np.nan}, "x_train: sample 0 holds a number that is not finite"),
        ({"y_train": np.zeros(8, int), "y_test": np.zeros(4, int)}, "a single class; a classifier needs two"),
        ({"y_train": np.array([0] * 7 + [1])}, "a.npz: class 1 has 1 training samples: too few to hold out"),
        ({"x_test": imdb(4, 1)}, "x_train holds series of 2 channels, x_test words"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, changes: dict[str, np.ndarray | None], message: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{key: array for key, array in (GOOD | changes).items() if array is not None})
    with pytest.raises(UserError, match=message) as caught:
        array_dataset(path)
    assert str(caught.value).isprintable()


def test_pickles_of_other_things(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "a.npz"
    for held, message in (
        ([Touch(mark), [2]], "x_test: a pickle that is not lists of numbers: it wants to use posix.mknod"),
        ([["word"], [2]], "x_test: sample 0 is not a list of word numbers"),
        ([[1, -2], [2]], "x_test: sample 0 is not a list of word numbers"),
        ([[1], [[2]]], "x_test: sample 1 is not a list of word numbers"),
        ([[1], None], "x_test: sample 1 is not a list of word numbers"),
    ):
        lists = np.empty(2, object)
        for i, one in enumerate(held):
            lists[i] = one
        np.savez(path, x_train=imdb(40, 1), y_train=labels(40), x_test=lists, y_test=labels(2))
        with pytest.raises(UserError, match=message):
            array_dataset(path)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04" + b"x" * 60, pickle.dumps([1])])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"a.npz: x_train cannot be read"):
        array_dataset(tmp_path / "a.npz")
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "x_train.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"b: x_train cannot be read"):
        array_dataset(folder)
    with pytest.raises(UserError, match=r"nowhere: x_train cannot be read: No such file"):
        array_dataset(tmp_path / "nowhere")
