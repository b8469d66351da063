"""Prepared corpora: the same numbers as from the texts, nothing half-written, and files that do not belong together."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dist_mp.config import TextData
from dist_mp.data import corpus as corpora
from dist_mp.data.corpus import is_corpus, open_corpus, prepare_corpus
from dist_mp.data.text import TextDataset
from dist_mp.errors import UserError

BROWN = Path(__file__).resolve().parents[2].parent / "shared/data/brown"


def write(folder: Path, **texts: str | bytes) -> Path:
    folder.mkdir()
    known: dict[str, str | bytes] = {
        "train": " the cat\tsat \n\nthe döner <unk>\n the mat",
        "valid": "a cat\n",
        "test": "the\n",
    }
    for part, text in (known | texts).items():
        raw = text if isinstance(text, bytes) else text.encode()
        (folder / f"ptb.{part}.txt").write_bytes(raw)
    return folder


@pytest.mark.parametrize("max_words", [None, 3, 100])
def test_the_same_words_as_from_the_texts(tmp_path: Path, max_words: int | None) -> None:
    folder = write(tmp_path / "texts", valid=b"\xef\xbb\xbfa cat\r\n")
    summary = prepare_corpus(folder, tmp_path / "out", max_words)
    direct = TextDataset(TextData(path=str(folder), max_words=max_words))
    mapped = TextDataset(TextData(path=str(tmp_path / "out"), max_words=max_words))
    assert mapped.vocabulary.words == direct.vocabulary.words
    assert mapped.vocabulary.sha256 == direct.vocabulary.sha256
    assert summary.vocabulary == len(direct.vocabulary)
    for part in ("train", "valid", "test"):
        left, right = getattr(direct, part), getattr(mapped, part)
        np.testing.assert_array_equal(left.tokens, right.tokens)
        assert summary.tokens[part] == len(left.tokens)
        assert isinstance(right.tokens, np.memmap)
        for one, two in zip(left.batches(0, 2, 1, 1), right.batches(0, 2, 1, 1), strict=True):
            np.testing.assert_array_equal(one.inputs, two.inputs)
            np.testing.assert_array_equal(one.targets, two.targets)
    index = json.loads((tmp_path / "out/index.json").read_text())
    assert index["sources"]["valid"]["bytes"] == 10
    assert mapped.describe().split(": ")[1] == direct.describe().split(": ")[1]


def test_limits(tmp_path: Path) -> None:
    prepare_corpus(write(tmp_path / "texts"), tmp_path / "out", 4)
    path = str(tmp_path / "out")
    assert len(TextDataset(TextData(path=path, limit_tokens=3)).train.tokens) == 3
    with pytest.raises(UserError, match=r"data.max_words: 5, but .*out was prepared with 4"):
        TextDataset(TextData(path=path, max_words=5))
    with pytest.raises(UserError, match=r"data.limit_tokens: a single word"):
        TextDataset(TextData(path=path, limit_tokens=1))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train": ""}, "train.txt: holds no words"),
        ({"test": ""}, "test.txt: needs at least two words"),
        ({"valid": "\n"}, "valid.txt: needs at least two words"),
        ({"train": b"fine\ncaf\xe9\n"}, "train.txt, line 2: byte 3 of the line is not UTF-8"),
        ({"valid": "fine\n".encode("utf-16")}, "valid.txt, line 1: byte 0 of the line is not UTF-8"),
        ({"test": "a\nb\0c\n"}, "test.txt, line 2: a zero byte"),
        ({"train": "x" * 2000}, "train.txt, line 1: is longer than 0 MiB"),
    ],
)
def test_bad_texts_leave_nothing(
    tmp_path: Path, texts: dict[str, str | bytes], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "MAX_LINE_BYTES", 1000)
    folder = write(tmp_path / "texts", **texts)
    with pytest.raises(UserError, match=message) as caught:
        prepare_corpus(folder, tmp_path / "out")
    assert str(caught.value).isprintable()
    assert [p.name for p in tmp_path.iterdir()] == ["texts"]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    folder = write(tmp_path / "texts")
    prepare_corpus(folder, tmp_path / "out")
    before = (tmp_path / "out/index.json").read_bytes()
    with pytest.raises(UserError, match="out: exists already"):
        prepare_corpus(folder, tmp_path / "out", 3)
    assert (tmp_path / "out/index.json").read_bytes() == before
    with pytest.raises(UserError, match="needs exactly one file that ends in"):
        prepare_corpus(tmp_path / "out", tmp_path / "again")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("index.json", lambda raw: raw[:80], "not a whole prepared corpus"),
        ("index.json", lambda raw: raw.replace(b'"train": 1', b'"train": 2'), r"train.npy holds int32 \(1.,\), not"),
        ("vocabulary.txt", lambda raw: raw.replace(b"cat", b"dog"), "vocabulary.txt is not the one"),
        ("vocabulary.txt", lambda raw: raw[:-2], "vocabulary.txt is not the one"),
        ("vocabulary.txt", lambda raw: b"a\n", "a vocabulary without <unk>"),
        ("vocabulary.txt", lambda raw: b"\xff", "not a whole prepared corpus"),
        ("train.npy", lambda raw: raw[:-3], "not a whole prepared corpus"),
        ("train.npy", lambda raw: b"", "not a whole prepared corpus"),
        ("train.npy", lambda raw: raw.replace(b"<i4", b"<f4"), "train.npy holds float32"),
        ("train.npy", None, "train.npy: cannot be read: No such file"),
    ],
)
def test_damaged_folders(tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None, message: str) -> None:
    out = tmp_path / "out"
    prepare_corpus(write(tmp_path / "texts"), out)
    if damage is None:
        (out / name).unlink()
    else:
        (out / name).write_bytes(damage((out / name).read_bytes()))
    with pytest.raises(UserError, match=message) as caught:
        open_corpus(out)
    assert str(caught.value).isprintable()


def test_what_is_not_a_corpus(tmp_path: Path) -> None:
    assert not is_corpus(tmp_path)
    (tmp_path / "index.json").write_text("{}")
    assert not is_corpus(tmp_path)


@pytest.mark.skipif(not BROWN.is_dir(), reason="the Brown corpus is not beside this checkout (../shared/data)")
def test_the_brown_corpus(tmp_path: Path) -> None:
    summary = prepare_corpus(BROWN, tmp_path / "out")
    assert summary.tokens == {"train": 1_096_830, "valid": 60_812, "test": 60_890}
    assert summary.vocabulary == 10_000
