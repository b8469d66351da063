"""What a model is shown of other data: to the bit what it would be shown of the run's own test data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dist_mp.config import CampaignData, Config
from dist_mp.data.base import Batch, Dataset, Split
from dist_mp.data.campaign import Campaign
from dist_mp.data.corpus import prepare_corpus
from dist_mp.data.images import IDX_FILES
from dist_mp.data.normalise import Normaliser
from dist_mp.data.open import open_dataset
from dist_mp.data.text import TextDataset
from dist_mp.data.unseen import Unseen, open_unseen
from dist_mp.errors import UserError
from tests.data.markov import write_corpus
from tests.data.test_arrays import imdb, labels
from tests.data.test_images import write_idx
from tests.data.test_matched import FACTOR, HERE, THERE, prepare, prepare_other
from tests.data.test_reviews import reviews, write_tar

SERIES = "@timestamps false\n@classLabel true up down\n@data\n"


def write_series(folder: Path) -> Path:
    for part, count in (("TRAIN", 12), ("TEST", 5)):
        rows = [
            f"{i},{i + 2},?{',1' * (i % 3)}:{-i},0,0{',2' * (i % 3)}:{'up' if i % 2 else 'down'}" for i in range(count)
        ]
        (folder / f"Two_{part}.ts").write_text(SERIES + "\n".join(rows) + "\n")
    return folder / "Two_TRAIN.ts"


def write_words(folder: Path) -> Path:
    path = folder / "imdb.npz"
    np.savez(path, x_train=imdb(40, 1), y_train=labels(40), x_test=imdb(10, 2), y_test=labels(10))
    return path


def configured(data: dict[str, Any], model: str) -> Config:
    return Config.model_validate({"data": data, "model": {"kind": model}})


MAKE: dict[str, Callable[[Path], tuple[Config, Path]]] = {
    "text": lambda f: (configured({"kind": "text", "path": str(write_corpus(f)), "length": 3}, "language"), f),
    "reviews": lambda f: (
        configured({"kind": "labelled", "path": str(write_tar(f / "r.tar.gz", reviews()))}, "classifier"),
        f / "r.tar.gz",
    ),
    "series": lambda f: (
        configured({"kind": "labelled", "format": "series", "path": str(write_series(f))}, "classifier"),
        f / "Two_TEST.ts",
    ),
    "idx": lambda f: (
        configured({"kind": "labelled", "format": "idx", "path": str(write_idx(f / "i"))}, "classifier"),
        f / "i",
    ),
    "words": lambda f: (
        configured({"kind": "labelled", "format": "arrays", "path": str(write_words(f))}, "classifier"),
        f / "imdb.npz",
    ),
}


def opened(config: Config, dataset: Dataset, path: Path, part: str = "test", own_scale: bool = False) -> Unseen:
    """Through the JSON that a run folder keeps."""
    return open_unseen(config, dataset.spec, json.loads(json.dumps(dataset.state())), path, part, own_scale)


def batches(split: Split, rows: int = 4) -> list[Batch]:
    return list(split.batches(0, rows, 0, rows))


def assert_equal(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        for name in ("inputs", "targets", "weight", "reset", "sequence", "position"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype


@pytest.mark.parametrize("kind", MAKE)
def test_the_test_data_are_seen_as_in_the_run(kind: str, tmp_path: Path) -> None:
    config, path = MAKE[kind](tmp_path)
    dataset = open_dataset(config)
    assert dataset.test is not None
    unseen = opened(config, dataset, path)
    assert unseen.known
    assert_equal(batches(unseen.split), batches(dataset.test))
    with pytest.raises(UserError, match="only shots have a scale of their own"):
        opened(config, dataset, path, own_scale=True)


def test_shots_with_the_scale_of_the_run_or_their_own(tmp_path: Path) -> None:
    here, there = prepare(tmp_path / "here", Campaign(HERE)), prepare_other(tmp_path / "there")
    data = {"kind": "shots", "path": str(here), "length": 16, "warning_steps": 12}
    config = configured(data, "disruption")
    dataset = open_dataset(config)
    for scale in ("training", "own"):
        other = open_dataset(configured(data | {"test_path": str(there), "test_scale": scale}, "disruption"))
        assert other.test is not None
        assert_equal(batches(opened(config, dataset, there, own_scale=scale == "own").split), batches(other.test))
    # A model of generated shots reads recorded ones too.
    generated = configured({"kind": "campaign"} | HERE.model_dump() | {"length": 16}, "disruption")
    unseen = opened(generated, open_dataset(generated), there)
    assert list(unseen.split.numbers) == list(range(90_000, 90_010))  # type: ignore[attr-defined]
    batch = batches(unseen.split, 10)[0]
    kept = open_dataset(generated).normaliser  # type: ignore[attr-defined]
    assert isinstance(kept, Normaliser)
    which = int(batch.sequence[0])
    expected = kept.window(np.float32(FACTOR) * THERE.shot(which).features(), THERE.shot(which).missing, 0, 16)
    np.testing.assert_allclose(batch.inputs[0], expected, atol=1e-3)


def test_texts_of_other_kinds(tmp_path: Path) -> None:
    config, folder = MAKE["text"](tmp_path)
    dataset = open_dataset(config)
    assert isinstance(dataset, TextDataset)
    prepare_corpus(folder, tmp_path / "prepared", None)
    expected = batches(dataset.test)
    for path in (tmp_path / "prepared", folder / "markov.test.txt"):
        assert_equal(batches(opened(config, dataset, path).split), expected)
    new = tmp_path / "new.txt"
    new.write_text("w1 w2\nw3 never seen\n\nw4", encoding="utf-8")
    unseen = opened(config, dataset, new)
    assert unseen.line_of is not None
    assert unseen.line_of.tolist() == [1, 1, 1, 2, 2, 2, 2, 3, 4, 4]
    words = [dataset.vocabulary.words[i] for i in unseen.split.tokens]  # type: ignore[attr-defined]
    assert words == ["w1", "w2", "<eos>", "w3", "<unk>", "<unk>", "<eos>", "<eos>", "w4", "<eos>"]


def test_data_without_labels(tmp_path: Path) -> None:
    config, path = MAKE["reviews"](tmp_path)
    dataset = open_dataset(config)
    plain = tmp_path / "plain"
    plain.mkdir()
    for name, text in (("b.txt", "Wonderful film"), ("a.txt", "dreadful, never seen word")):
        (plain / name).write_text(text)
    unseen = opened(config, dataset, plain)
    assert list(unseen.names) == ["a.txt", "b.txt"] and not unseen.known
    unknown = dataset.vocabulary.encode(["<unk>"])[0]  # type: ignore[attr-defined]
    assert (unseen.split.sequences[0] == unknown).tolist()[1:] == [True] * 3  # type: ignore[attr-defined]

    config, path = MAKE["series"](tmp_path)
    dataset = open_dataset(config)
    text = path.read_text()
    rows = [line.rpartition(":")[0] for line in text.removeprefix(SERIES).splitlines()]
    bare = tmp_path / "bare.ts"
    bare.write_text("@timestamps false\n@classLabel false\n@data\n" + "\n".join(rows))
    unseen = opened(config, dataset, bare)
    assert not unseen.known
    assert dataset.test is not None
    for a, b in zip(batches(unseen.split), batches(dataset.test), strict=True):
        np.testing.assert_array_equal(a.inputs, b.inputs)

    config, path = MAKE["idx"](tmp_path)
    dataset = open_dataset(config)
    unseen = opened(config, dataset, path / IDX_FILES[2])
    assert not unseen.known and len(unseen.names) == 9
    assert dataset.test is not None
    np.testing.assert_array_equal(batches(unseen.split)[0].inputs, batches(dataset.test)[0].inputs)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("series", SERIES.replace("up", "left") + "1,2:1,2:left\n", "class 'left' is not among up down"),
        ("series", SERIES + "1,2:up\n", r"samples of shape \(2, 1\); the model was trained on 2 channels"),
        ("series", "nothing", "no @data line"),
        ("text", "\0\0\0", "a zero byte"),
        ("text", "one", "."),
        ("reviews", "not a tar", "not a readable tar archive"),
        ("idx", "not idx", "not an idx file"),
        ("words", "not a zip", "cannot be read"),
    ],
)
def test_what_does_not_fit_gets_one_line(kind: str, content: str, message: str, tmp_path: Path) -> None:
    config, _ = MAKE[kind](tmp_path)
    dataset = open_dataset(config)
    path = tmp_path / f"bad{'.ts' if kind == 'series' else '.txt'}"
    path.write_text(content)
    if kind == "text" and content == "one":
        assert opened(config, dataset, path).split.steps(0, 4) == 1
        return
    with pytest.raises(UserError, match=message) as caught:
        opened(config, dataset, path)
    assert str(caught.value).isprintable()
    with pytest.raises(UserError, match="nowhere"):
        opened(config, dataset, tmp_path / "nowhere")


def test_shots_that_are_not_prepared(tmp_path: Path) -> None:
    config = configured({"kind": "campaign"} | CampaignData(shots=12, profile_points=8).model_dump(), "disruption")
    dataset = open_dataset(config)
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "machine.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match=r"raw shots of a tokamak .* prepare them first: dist-mp data prepare"):
        opened(config, dataset, raw)
    with pytest.raises(UserError, match=r"kept nothing of its data; it predicts on its own data only"):
        open_unseen(config, dataset.spec, {}, raw, "test")
