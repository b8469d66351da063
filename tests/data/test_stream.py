"""Streams and data sets from a user's module: sharding, and what is answered to each mistake."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dist_mp.config import ClassifierModel, Config, DisruptionModel, LanguageModel, ModuleData
from dist_mp.data.open import open_dataset
from dist_mp.data.stream import Sample, StreamSplit
from dist_mp.errors import UserError


def numbered(count: int) -> StreamSplit:
    def samples(epoch: int) -> Iterator[Sample]:
        for i in np.random.default_rng(epoch).permutation(count).tolist():
            yield np.full((1 + i % 4, 2), i), i % 3

    return StreamSplit(samples, count, 4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 3, 7, 17])
@pytest.mark.parametrize("start", [0, 1])
def test_each_sample_once_and_exact_resume(ranks: int, count: int, start: int) -> None:
    split, rows = numbered(count), 2
    parts = [list(split.batches(3, ranks * rows, rank * rows, rows, start)) for rank in range(ranks)]
    assert {len(part) for part in parts} == {max(split.steps(3, ranks * rows) - start, 0)}
    found = []
    for part in parts:
        for batch in part:
            assert batch.inputs.shape == (2, 4, 2) and batch.inputs.dtype == np.float32
            for row in np.flatnonzero(batch.sequence >= 0):
                i = int(batch.inputs[row, 0, 0])
                assert np.flatnonzero(batch.weight[row]).tolist() == [i % 4]
                assert batch.targets[row, i % 4] == i % 3
                found.append((int(batch.sequence[row]), i))
    order = np.random.default_rng(3).permutation(count).tolist()
    assert sorted(found) == list(enumerate(order))[start * ranks * rows :]


def run(samples: Iterable[Sample], count: int = 2) -> list:
    return list(StreamSplit(lambda epoch: samples, count, 3).batches(0, 2, 0, 2))


GOOD = np.ones((2, 2))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "epoch 0: the stream is empty; 2 samples"),
        ([(GOOD, 0)], "the stream ended after 1 samples; 2 were announced"),
        ([(GOOD, 0)] * 3, "goes on after the 2 samples"),
        ([(np.array(["a"]), 0)], "sample 0: <U1"),
        ([(1.0, 0)], r"sample 0: float64 \(\)"),
        ([(GOOD, 0), (np.ones((4, 2)), 0)], r"sample 1: float64 \(4, 2\); expected are 1 to 3 steps of \(2,\) float32"),
        ([(GOOD, 0), (np.ones((0, 2)), 0)], r"sample 1: float64 \(0, 2\); expected"),
        ([(GOOD, 0), (np.ones((2, 3)), 0)], r"sample 1: float64 \(2, 3\); expected"),
        ([(GOOD, 0), (np.array([1, 2]), 0)], r"sample 1: int64 \(2,\); expected"),
        ([(GOOD, 0), (GOOD * np.nan, 0)], "sample 1: holds a number that is not finite"),
    ],
)
def test_streams_with_mistakes(samples: list[Sample], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(samples)


def test_words_become_whole_numbers() -> None:
    (batch,) = run([(np.array([5, 6]), 1), (np.array([7]), 0)])
    assert batch.inputs.dtype == np.int32
    assert batch.inputs.tolist() == [[5, 6, 0], [7, 0, 0]]


MODULE = """
import numpy as np
from dist_mp.data.base import DataSpec
from dist_mp.data.stream import StreamDataset, StreamSplit

def samples(epoch):
    return ((np.full((3, 2), i + epoch), i % 2) for i in range(6))

def make(config):
    split = StreamSplit(samples, 6, 3)
    return StreamDataset(DataSpec(length=3, channels=2, classes=2), split, split)

def wrong(config):
    return 3
"""


def opened(factory: str) -> object:
    return open_dataset(Config(data=ModuleData(factory=factory), model=ClassifierModel()))


def test_a_data_set_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    dataset = opened("mine.py:make")
    batch = next(iter(dataset.train.batches(1, 6, 0, 6)))  # type: ignore[attr-defined]
    assert batch.inputs[:, 0, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert dataset.describe() == "streams of 6 training and 6 held-out samples"  # type: ignore[attr-defined]
    monkeypatch.syspath_prepend(tmp_path)
    assert opened("mine:make").spec == dataset.spec  # type: ignore[attr-defined]
    for name in ("mine", "dist_mp_user_mine"):
        sys.modules.pop(name, None)


def test_factories_with_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    for factory, message in (
        ("", "data.factory: ''; name FILE.py:FUNCTION"),
        ("other.py", "name FILE.py:FUNCTION"),
        ("no.py:make", "data.factory: no file no.py"),
        ("no_module_here.of:make", "data.factory: no module 'no_module_here.of'"),
        (f"{tmp_path / 'other.py'}:nothing", "has no function 'nothing'"),
        ("other:wrong", "data.factory: other:wrong gave int, not a dist_mp.data.base.Dataset"),
    ):
        with pytest.raises(UserError, match=message):
            opened(factory)
    for model, needs in ((LanguageModel(), "a vocabulary and a target"), (DisruptionModel(), "scalars or profiles")):
        with pytest.raises(UserError, match=f"data.factory: model.kind {model.kind} needs {needs}"):
            open_dataset(Config(data=ModuleData(factory="other:make"), model=model))
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        opened("broken:make")
    sys.modules.pop("other", None)
