"""The aclImdb layout as archive and folder, and archives that mean harm."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dist_mp.data.reviews import ReviewDataset, hold_out, read_reviews, tokenise
from dist_mp.errors import UserError

SNIPPETS = Path(__file__).resolve().parents[2].parent / "shared/data/movie_snippets_aclImdb_layout.tar.gz"

Entries = list[tuple[tarfile.TarInfo, bytes]]


def entry(name: str, content: str | bytes = "", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    raw = content.encode() if isinstance(content, str) else content
    info = tarfile.TarInfo(name)
    info.size = len(raw)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, raw


def reviews() -> Entries:
    entries = [entry("aclImdb/README", "about"), entry("aclImdb/train/unsup/0_0.txt", "left aside")]
    for part, count in (("train", 12), ("test", 4)):
        for name, word in (("pos", "Wonderful"), ("neg", "dreadful")):
            for i in range(count):
                text = f"{word}, it's film no. {i}!<br /><br />" + "so " * i
                entries.append(entry(f"aclImdb/{part}/{name}/{i}_{7 if name == 'pos' else 2}.txt", text))
    return entries


def write_tar(path: Path, entries: Entries) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for info, raw in entries:
            archive.addfile(info, io.BytesIO(raw))
    return path


def test_words() -> None:
    assert tokenise("It's GREAT!<br />Déjà_vu 2x... 'quoted'") == ["it's", "great", "!", "déjà", "vu", "2x", "quoted"]
    assert tokenise(" ... ") == ["<unk>"]


@pytest.mark.parametrize("name", ["reviews.tar.gz", "reviews.tar"])
def test_archive_and_folder_give_the_same_reviews(tmp_path: Path, name: str) -> None:
    from_archive = read_reviews(write_tar(tmp_path / name, reviews()))
    for info, raw in reviews():
        file = tmp_path / "unpacked" / info.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)
    assert read_reviews(tmp_path / "unpacked") == from_archive
    assert read_reviews(tmp_path / "unpacked/aclImdb") == from_archive
    assert len(from_archive) == 32
    assert from_archive[0].label == 0
    assert "dreadful" in from_archive[0].text


def test_dataset(tmp_path: Path) -> None:
    dataset = ReviewDataset(write_tar(tmp_path / "a.tar.gz", reviews()), max_length=9, validation_fraction=0.25)
    assert [len(s.labels) for s in (dataset.train, dataset.valid, dataset.test)] == [18, 6, 8]
    assert dataset.train.labels.sum() == 9
    assert dataset.valid.labels.sum() == 3
    assert dataset.spec.length == 9
    assert dataset.spec.classes == 2
    for split in (dataset.train, dataset.valid, dataset.test):
        for sequence, label in zip(split.sequences, split.labels, strict=True):
            words = dataset.vocabulary.decode(sequence)
            assert len(words) <= 9
            if len(words) < 9:
                assert words[0] == ("wonderful" if label else "dreadful")
    assert "18 / 6 / 8 reviews" in dataset.describe()
    limited = ReviewDataset(write_tar(tmp_path / "b.tar", reviews()), max_words=5)
    assert limited.spec.vocabulary == 5


def test_holding_out_keeps_both_classes() -> None:
    labels = np.array([0] * 10 + [1] * 3 + [0] * 5, np.int32)
    kept, held_out = hold_out(labels, np.arange(13), 0.2, 1, "here")
    assert sorted([*kept, *held_out]) == list(range(13))
    assert np.bincount(labels[held_out]).tolist() == [2, 1]
    with pytest.raises(UserError, match="class 1 has 1 training samples"):
        hold_out(np.array([0, 0, 1], np.int32), np.arange(3), 0.2, 1, "here")


def drop(prefix: str) -> Callable[[Entries], Entries]:
    return lambda entries: [e for e in entries if not e[0].name.startswith(prefix)]


def add(*more: tuple[tarfile.TarInfo, bytes]) -> Callable[[Entries], Entries]:
    return lambda entries: [*entries, *more]


LINK = entry("aclImdb/train/pos/99_9.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd")
HOSTILE: list[tuple[Callable[[Entries], Entries], str]] = [
    (add(entry("aclImdb/train/pos/../../../../tmp/x.txt", "x")), "leads out of the archive"),
    (add(entry("/train/pos/1_1.txt", "x")), "leads out of the archive"),
    (add(entry("..\\train\\pos\\1_1.txt", "x")), "leads out of the archive"),
    (add(LINK), "is a link or device where a review is expected"),
    (add(entry("aclImdb/train/pos/98_9.txt", type=tarfile.FIFOTYPE)), "is a link or device"),
    (add(entry("aclImdb/train/pos/97_9.txt", b"x" * (1 << 20) + b"x")), "too much for a review"),
    (add(entry("aclImdb/train/pos/96_9.txt", "caf\xe9".encode("latin-1"))), "byte 3 is not UTF-8"),
    (add(entry("aclImdb/train/pos/3_7.txt", "again")), "holds train/pos/3_7.txt twice"),
    (drop("aclImdb/test/neg"), "holds no reviews under test/neg"),
    (drop("aclImdb"), "holds no reviews under train/neg"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE, ids=[f"{i}-{m[:20]}" for i, (_, m) in enumerate(HOSTILE)])
def test_hostile_archives_get_one_clear_line(
    tmp_path: Path, change: Callable[[Entries], Entries], message: str
) -> None:
    path = write_tar(tmp_path / "hostile.tar.gz", change(reviews()))
    with pytest.raises(UserError, match=message) as caught:
        read_reviews(path)
    assert "\n" not in str(caught.value)
    assert "hostile.tar.gz" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["hostile.tar.gz"]


def flip(raw: bytes, at: int) -> bytes:
    changed = bytearray(raw)
    changed[at] ^= 1
    return bytes(changed)


def huge_member(tmp_path: Path, name: str) -> bytes:
    """A header that announces 1e12 bytes, and nothing behind it."""
    info = tarfile.TarInfo(name)
    info.size = 10**12
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda tmp_path: b"", "not a readable tar archive"),
        (lambda tmp_path: b"PK\x03\x04" + b"zip" * 300, "not a readable tar archive"),
        (lambda tmp_path: b"\x1f\x8b" + b"junk" * 50, "not a readable tar archive"),
        (
            lambda tmp_path: write_tar(tmp_path / "whole.tar.gz", reviews()).read_bytes()[:700],
            "is the download complete",
        ),
        (
            lambda tmp_path: write_tar(tmp_path / "whole.tar", reviews()).read_bytes()[:8000],
            "is the download complete|cut off",
        ),
        (lambda tmp_path: write_tar(tmp_path / "whole.tar", reviews()).read_bytes()[: 20 * 1024], "mark of its end"),
        (lambda tmp_path: flip(write_tar(tmp_path / "whole.tar.gz", reviews()).read_bytes(), -6), "CRC check failed"),
        (lambda tmp_path: huge_member(tmp_path, "aclImdb/train/pos/1_1.txt"), "more than 4 GiB"),
        (lambda tmp_path: huge_member(tmp_path, "elsewhere"), "more than 4 GiB"),
    ],
    ids=["empty", "zip", "junk", "cut gz", "cut tar", "cut between members", "checksum", "huge review", "huge other"],
)
def test_damaged_archives_get_one_clear_line(tmp_path: Path, content: Callable[[Path], bytes], message: str) -> None:
    path = tmp_path / "damaged.tar.gz"
    path.write_bytes(content(tmp_path))
    with pytest.raises(UserError, match=message) as caught:
        read_reviews(path)
    assert "\n" not in str(caught.value)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        read_reviews(tmp_path / "nowhere")


@pytest.mark.skipif(not SNIPPETS.is_file(), reason="the movie snippets are not beside this checkout (../shared/data)")
def test_the_movie_snippets() -> None:
    dataset = ReviewDataset(SNIPPETS)
    splits = (dataset.train, dataset.valid, dataset.test)
    assert sum(len(split.labels) for split in splits) == 10_605
    assert sum(int(split.labels.sum()) for split in splits) == 5_242
