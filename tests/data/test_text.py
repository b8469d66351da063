"""The Penn Tree Bank format: vocabulary, encoding, streams that predict each word once, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.config import Config, LanguageModel, TextData
from dist_mp.data.open import open_dataset
from dist_mp.data.text import TextDataset, TextSplit, read_words
from dist_mp.data.vocabulary import Vocabulary
from dist_mp.errors import UserError
from tests.data.markov import write_corpus

BROWN = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "brown"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_line_ends_become_eos(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\ufeff the cat \n\r\n sat\r\nlast line")
    assert read_words(path) == ["the", "cat", "<eos>", "<eos>", "sat", "<eos>", "last", "line", "<eos>"]
    assert read_words(path, 2) == ["the", "cat"]


def test_vocabulary_is_ordered_by_frequency_then_first_appearance() -> None:
    vocabulary = Vocabulary(["b", "a", "a", "c", "b", "d", "c", "c"])
    assert vocabulary.words == ("c", "b", "a", "d", "<unk>")
    assert vocabulary.encode(["d", "never", "c"]).tolist() == [3, 4, 0]
    assert vocabulary.encode([]).dtype == np.int32


def test_vocabulary_limit_keeps_the_most_frequent_and_unk() -> None:
    words = ["b", "a", "a", "c", "b", "d", "c", "c"]
    assert Vocabulary(words, 3).words == ("c", "b", "<unk>")
    assert Vocabulary(words, 5).words == ("c", "b", "a", "d", "<unk>")
    assert Vocabulary(["<unk>", "a", "a", "b", "b", "b"], 2).words == ("b", "<unk>")
    assert Vocabulary(["<unk>", "<unk>", "a"]).words == ("<unk>", "a")
    with pytest.raises(UserError, match=r"data.max_words: must be at least 2"):
        Vocabulary(words, 1)


@given(st.lists(st.sampled_from(["a", "b", "été", "<unk>", "<eos>", "x" * 50]), min_size=1))
def test_known_words_round_trip(words: list[str]) -> None:
    vocabulary = Vocabulary(words)
    assert vocabulary.decode(vocabulary.encode(words)) == words


@given(count=st.integers(2, 18), length=st.integers(1, 5), ranks=st.integers(1, 4), rows=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_every_word_but_the_first_is_predicted_once(count: int, length: int, ranks: int, rows: int) -> None:
    # Each word is its own place in the text, so that targets say which place is predicted.
    split = TextSplit(np.arange(count, dtype=np.int32), length)
    predicted, steps = [], set()
    for rank in range(ranks):
        batches = list(split.batches(0, ranks * rows, rank * rows, rows))
        steps.add(len(batches))
        for batch in batches:
            assert batch.inputs.shape == batch.targets.shape == batch.weight.shape == (rows, length)
            assert batch.inputs.dtype == batch.targets.dtype == np.int32
            valid = batch.weight > 0
            assert (batch.targets[valid] == batch.inputs[valid] + 1).all()
            predicted.extend(batch.targets[valid].tolist())
    assert steps == {split.steps(0, ranks * rows)}
    assert sorted(predicted) == list(range(1, count))


@given(count=st.integers(2, 200), length=st.integers(1, 7), rows=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_a_row_is_one_contiguous_stretch(count: int, length: int, rows: int) -> None:
    split = TextSplit(np.arange(count, dtype=np.int32), length)
    batches = list(split.batches(0, rows, 0, rows))
    assert [bool(batch.reset.all()) for batch in batches] == [True] + [False] * (len(batches) - 1)
    assert not any(batch.reset.any() for batch in batches[1:])
    for row in range(rows):
        words = np.concatenate([b.inputs[row][b.weight[row] > 0] for b in batches])
        assert (np.diff(words) == 1).all()
        weight = np.concatenate([b.weight[row] for b in batches])
        assert (np.diff(weight) <= 0).all()


def test_global_batches_do_not_depend_on_the_number_of_ranks() -> None:
    split = TextSplit(np.random.default_rng(1).integers(0, 50, 333).astype(np.int32), 5)
    whole = list(split.batches(0, 12, 0, 12))
    for ranks in (2, 3, 4):
        rows = 12 // ranks
        parts = [list(split.batches(3, 12, rank * rows, rows)) for rank in range(ranks)]
        for step, batch in enumerate(whole):
            for name in ("inputs", "targets", "weight", "reset"):
                joined = np.concatenate([getattr(part[step], name) for part in parts])
                np.testing.assert_array_equal(joined, getattr(batch, name))


def test_start_step_is_the_rest_of_the_epoch() -> None:
    split = TextSplit(np.arange(100, dtype=np.int32), 6)
    whole = list(split.batches(0, 3, 0, 3))
    for start in range(len(whole) + 1):
        rest = list(split.batches(0, 3, 0, 3, start))
        assert len(rest) == len(whole) - start
        for left, right in zip(whole[start:], rest, strict=True):
            np.testing.assert_array_equal(left.inputs, right.inputs)
            np.testing.assert_array_equal(left.reset, right.reset)


def test_a_corpus_from_the_settings(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    config = Config(data=TextData(path=str(tmp_path), length=4), model=LanguageModel())
    dataset = open_dataset(config)
    assert isinstance(dataset, TextDataset)
    assert dataset.spec.length == 4
    text = " ".join(dataset.vocabulary.decode(dataset.train.tokens))
    lines = (tmp_path / "markov.train.txt").read_text().splitlines()
    assert set(dataset.vocabulary.words) == set(text.split()) | {"<unk>"}
    assert dataset.spec.vocabulary == len(dataset.vocabulary)
    assert text == " <eos> ".join(line.strip() for line in lines) + " <eos>"
    assert f"{len(dataset.train.tokens)} / {len(dataset.valid.tokens)}" in dataset.describe()
    again = open_dataset(config)
    assert isinstance(again, TextDataset)
    np.testing.assert_array_equal(again.train.tokens, dataset.train.tokens)


def test_limits_from_the_settings(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    dataset = TextDataset(TextData(path=str(tmp_path), max_words=10, limit_tokens=40))
    assert len(dataset.vocabulary) == 10
    assert [len(split.tokens) for split in (dataset.train, dataset.valid, dataset.test)] == [40, 40, 40]


def empty_valid(folder: Path) -> None:
    write(folder / "markov.valid.txt", "")


def second_train(folder: Path) -> None:
    write(folder / "other.train.txt", "a b\n")


def latin_1(folder: Path) -> None:
    write(folder / "markov.test.txt", "a b\nc d\ncaf\xe9 e\n".encode("latin-1"))


def latin_1_after_mark(folder: Path) -> None:
    write(folder / "markov.test.txt", b"\xef\xbb\xbfa\n\xff\n")


def utf_16(folder: Path) -> None:
    write(folder / "markov.train.txt", "ab c\nd".encode("utf-16-le"))


def folder_for_file(folder: Path) -> None:
    (folder / "markov.valid.txt").unlink()
    (folder / "markov.valid.txt").mkdir()


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "markov.test.txt").unlink(), r"exactly one file that ends in test.txt, found none"),
    (second_train, r"exactly one file that ends in train.txt, found markov.train.txt, other.train.txt"),
    (empty_valid, r"markov.valid.txt: holds no words"),
    (lambda folder: write(folder / "markov.valid.txt", " \t"), r"markov.valid.txt: a single word"),
    (lambda folder: write(folder / "markov.train.txt", "\n"), r"markov.train.txt: a single word"),
    (latin_1, r"markov.test.txt, line 3: byte 11 is not UTF-8"),
    (latin_1_after_mark, r"markov.test.txt, line 2: byte 5 is not UTF-8"),
    (utf_16, r"markov.train.txt, line 1: a zero byte"),
    (folder_for_file, r"ends in valid.txt, found none"),
]


@pytest.mark.parametrize(("damage", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_bad_files_get_one_clear_line(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write_corpus(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        TextDataset(TextData(path=str(tmp_path)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"), [("", "data.path: is empty"), ("nowhere", "data.path: no folder 'nowhere'")]
)
def test_a_missing_folder_is_named(path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        TextDataset(TextData(path=path))


@pytest.mark.skipif(not BROWN.is_dir(), reason="the Brown corpus is not beside this checkout (../shared/data/brown)")
def test_the_brown_corpus() -> None:
    dataset = TextDataset(TextData(path=str(BROWN)))
    assert len(dataset.vocabulary) == 10_000
    assert dataset.vocabulary.words[:2] == ("<unk>", "the")
    assert len(dataset.valid.tokens) == 57_955 + 2_857
    weight = sum(float(batch.weight.sum()) for batch in dataset.valid.batches(0, 7, 0, 7))
    assert weight == len(dataset.valid.tokens) - 1
