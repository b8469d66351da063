"""The Large Movie Review Dataset (Maas et al. 2011) as its tar archive or as the unpacked folder.

Layout: ``aclImdb/{train,test}/{pos,neg}/ID_RATING.txt``, one review a file; everything else in it is left aside. The
archive is read in one pass in memory: nothing is written to disk, so no path in it can do harm.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.base import Dataset, DataSpec
from dist_mp.data.buckets import BucketSplit, bucket_bounds
from dist_mp.data.vocabulary import UNKNOWN, Vocabulary
from dist_mp.errors import UserError

CLASSES = ("neg", "pos")
PARTS = ("train", "test")
MAX_REVIEW_BYTES = 1 << 20
MAX_TOTAL_BYTES = 4 << 30

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[!?]")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


@dataclass(frozen=True)
class Review:
    """One review as it was read."""

    part: str
    label: int
    """Index into `CLASSES`."""
    name: str
    text: str


def tokenise(text: str) -> list[str]:
    """Lower-case words with inner apostrophes, and ! and ? as words; a review without any becomes ``<unk>``."""
    return _WORD.findall(_BREAK.sub(" ", text).lower()) or [UNKNOWN]


def read_reviews(path: Path) -> list[Review]:
    """All reviews of an archive or folder, ordered by part, class and file name.

    Refused with one line: what is neither, a damaged archive, a path that leaves the archive, a link or device in
    place of a review, a review above 1 MiB, twice the same review, text that is not UTF-8, and a class without
    reviews.
    """
    if path.is_dir():
        reviews = list(_read_folder(path))
    elif path.is_file():
        reviews = list(_read_archive(path))
    else:
        raise UserError(f"{path}: no such file or folder; the aclImdb archive or its unpacked folder is expected")
    reviews.sort(key=lambda review: (PARTS.index(review.part), review.label, review.name))
    for left, right in pairwise(reviews):
        if (left.part, left.label, left.name) == (right.part, right.label, right.name):
            raise UserError(f"{path}: holds {left.part}/{CLASSES[left.label]}/{left.name} twice")
    counts = {(part, name): 0 for part in PARTS for name in CLASSES}
    for review in reviews:
        counts[review.part, CLASSES[review.label]] += 1
    for (part, name), count in counts.items():
        if not count:
            raise UserError(
                f"{path}: holds no reviews under {part}/{name}; the layout is {{train,test}}/{{pos,neg}}/*.txt"
            )
    return reviews


def read_plain(folder: Path) -> list[Review]:
    """Reviews without classes: the text files of a folder, by name; their label is 0.

    Refused with one line: a review above 1 MiB, and text that is not UTF-8.
    """
    files = sorted(file for file in folder.glob("*.txt") if file.is_file())
    return [Review("", 0, file.name, _read_file(file)) for file in files]


def _place(parts: tuple[str, ...]) -> tuple[str, int, str] | None:
    """Part, label and file name of a review, from the path's components; None if it is something else."""
    if len(parts) < 3 or parts[-3] not in PARTS or parts[-2] not in CLASSES or not parts[-1].endswith(".txt"):
        return None
    return parts[-3], CLASSES.index(parts[-2]), parts[-1]


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start} is not UTF-8; convert the file to UTF-8") from error


def _read_folder(folder: Path) -> Iterator[Review]:
    root = folder / "aclImdb" if (folder / "aclImdb").is_dir() else folder
    for part in PARTS:
        for name in CLASSES:
            for file in (root / part / name).glob("*.txt"):
                if file.is_file():
                    yield Review(part, CLASSES.index(name), file.name, _read_file(file))


def _read_file(file: Path) -> str:
    if file.stat().st_size > MAX_REVIEW_BYTES:
        raise UserError(f"{file}: {file.stat().st_size:,} bytes are too much for a review (limit 1 MiB)")
    return _decode(file.read_bytes(), str(file))


class _Whole:
    """A reader that remembers the last two tar blocks: where they are not zero, the archive was cut off.

    tarfile itself takes the end of a stream for the end of the archive.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._tail = b""

    def read(self, size: int) -> bytes:
        chunk = self._file.read(size)
        self._tail = (self._tail + chunk)[-2 * tarfile.BLOCKSIZE :]
        return chunk

    def finish(self) -> None:
        """Read to the end (and through the checksum of a compressed file)."""
        while self.read(1 << 16):
            pass
        if self._tail.strip(b"\0") or len(self._tail) < 2 * tarfile.BLOCKSIZE:
            raise EOFError("it ends without the mark of its end")


def _read_archive(path: Path) -> Iterator[Review]:
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as stream:
            whole = _Whole(stream)
            # A stream: read once from front to back, so that no header can point anywhere else.
            with tarfile.open(fileobj=cast(IO[bytes], whole), mode="r|") as archive:
                yield from _read_members(path, archive)
            whole.finish()
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable tar archive ({error}); is the download complete?") from error


def _read_members(path: Path, archive: tarfile.TarFile) -> Iterator[Review]:
    total = 0
    for member in archive:
        where = f"{path}: {member.name!r}"
        parts = PurePosixPath(member.name).parts
        if member.name.startswith("/") or ".." in parts or "\\" in member.name:
            raise UserError(f"{where} leads out of the archive; not an aclImdb archive")
        total += member.size
        if total > MAX_TOTAL_BYTES:
            raise UserError(f"{path}: unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB; not an aclImdb archive")
        place = _place(parts)
        if place is None or member.isdir():
            continue
        if not member.isreg():
            raise UserError(f"{where} is a link or device where a review is expected")
        if member.size > MAX_REVIEW_BYTES:
            raise UserError(f"{where}: {member.size:,} bytes are too much for a review (limit 1 MiB)")
        stream = archive.extractfile(member)
        yield Review(*place, _decode(stream.read() if stream is not None else b"", where))


class ReviewDataset(Dataset):
    """Reviews as word numbers with their class (0 negative, 1 positive), in buckets by length."""

    train: BucketSplit
    valid: BucketSplit
    test: BucketSplit

    def __init__(
        self,
        path: Path,
        max_words: int | None = 20_000,
        max_length: int = 400,
        buckets: int = 6,
        validation_fraction: float = 0.1,
        order_seed: int = 1,
        split_seed: int = 7,
    ) -> None:
        """Read `path`; hold out a fraction of the training reviews of each class; vocabulary from the others."""
        reviews = read_reviews(path)
        labels = np.array([review.label for review in reviews], np.int32)
        training = np.array([review.part == "train" for review in reviews])
        kept, held_out = hold_out(labels, np.flatnonzero(training), validation_fraction, split_seed, str(path))
        words = [tokenise(review.text) for review in reviews]
        self.vocabulary = Vocabulary([word for index in kept.tolist() for word in words[index]], max_words)
        encoded = [self.vocabulary.encode(tokens[-max_length:]) for tokens in words]
        bounds = bucket_bounds(np.array([len(e) for e in encoded], np.int64), buckets)

        def split(numbers: NDArray[np.int64], seed: int | None) -> BucketSplit:
            return BucketSplit([encoded[i] for i in numbers.tolist()], labels[numbers], bounds, seed)

        self._path = path
        self.train, self.valid = split(kept, order_seed), split(held_out, None)
        self.test = split(np.flatnonzero(~training), None)
        self.spec = DataSpec(length=int(bounds[-1]), vocabulary=len(self.vocabulary), classes=2)

    def state(self) -> dict[str, Any]:
        """Vocabulary, classes and lengths."""
        return {"words": list(self.vocabulary.words), "classes": list(CLASSES), "bounds": self.train.bounds.tolist()}

    def describe(self) -> str:
        """One line for the run's header."""
        counts = " / ".join(f"{len(s.labels):,}" for s in (self.train, self.valid, self.test))
        return f"{self._path}: {counts} reviews (train / valid / test), vocabulary {self.spec.vocabulary:,}"


def hold_out(
    labels: NDArray[np.int32], numbers: NDArray[np.int64], fraction: float, seed: int, where: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split `numbers` so that about `fraction` of each class, and at least one of it, is held out."""
    rng = np.random.default_rng([seed, 3])
    kept, held_out = [], []
    for label in np.unique(labels[numbers]):
        mixed = rng.permutation(numbers[labels[numbers] == label])
        held = max(1, round(len(mixed) * fraction))
        if held >= len(mixed):
            raise UserError(
                f"{where}: class {label} has {len(mixed)} training samples: too few to hold out {fraction:g} of them"
            )
        held_out.append(mixed[:held])
        kept.append(mixed[held:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held_out))
