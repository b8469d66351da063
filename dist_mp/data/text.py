"""Word-level corpora in the format of the Penn Tree Bank files, as contiguous streams for stateful training.

A corpus is a folder with three text files, one sentence a line, words apart by white space; each line end becomes the
word ``<eos>`` (Zaremba, Sutskever and Vinyals 2014). The vocabulary is that of the training file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import TextData
from dist_mp.data.base import Batch, Dataset, DataSpec, Split
from dist_mp.errors import UserError

END_OF_SENTENCE = "<eos>"
UNKNOWN = "<unk>"
PARTS = ("train", "valid", "test")


def find_files(folder: Path) -> dict[str, Path]:
    """The three files of a corpus, by part; refuses a folder that does not hold exactly one of each."""
    if not folder.is_dir():
        raise UserError(
            f"data.path: no folder {str(folder)!r}; it must hold files that end in train.txt, valid.txt, test.txt"
        )
    files = {}
    for part in PARTS:
        found = sorted(p for p in folder.iterdir() if p.name.endswith(f"{part}.txt") and p.is_file())
        if len(found) != 1:
            names = ", ".join(p.name for p in found) or "none"
            raise UserError(f"{folder}: needs exactly one file that ends in {part}.txt, found {names}")
        files[part] = found[0]
    return files


def read_words(path: Path, limit: int | None = None) -> list[str]:
    """The first `limit` words of a UTF-8 file (None: all), with ``<eos>`` for each line end.

    Fewer than two words leave nothing to predict and are refused, as is anything that is not UTF-8 text.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a byte order mark the offset counts from behind it.
        offset = error.start + len(raw) - len(error.object)
        line = raw.count(b"\n", 0, offset) + 1
        raise UserError(f"{path}, line {line}: byte {offset} is not UTF-8; convert the file to UTF-8") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}, line {line}: a zero byte; the file is not UTF-8 text")
    if text and not text.endswith("\n"):
        text += "\n"
    words = text.replace("\n", f" {END_OF_SENTENCE} ").split()
    if not words:
        raise UserError(f"{path}: holds no words; one sentence a line is expected")
    words = words[:limit]
    if len(words) < 2:
        raise UserError(
            f"{path}: a single word leaves nothing to predict; at least two are needed (data.limit_tokens: {limit})"
        )
    return words


class Vocabulary:
    """Words and their numbers, from 0 on: the most frequent first, ties in order of first appearance."""

    def __init__(self, training_words: list[str], max_words: int | None = None) -> None:
        """Take the words of a training text; at most `max_words` with ``<unk>``, which is always among them."""
        if max_words is not None and max_words < 2:
            raise UserError(f"data.max_words: must be at least 2, for {UNKNOWN} and one more word, got {max_words}")
        # Counter keeps the order of first appearance, and its sort is stable.
        ranked = [word for word, _ in Counter(training_words).most_common()]
        if UNKNOWN not in ranked:
            ranked.append(UNKNOWN)
        if max_words is not None:
            kept = set([word for word in ranked if word != UNKNOWN][: max_words - 1])
            ranked = [word for word in ranked if word in kept or word == UNKNOWN]
        self.words: tuple[str, ...] = tuple(ranked)
        self._number = {word: number for number, word in enumerate(ranked)}

    def __len__(self) -> int:
        """V."""
        return len(self.words)

    def encode(self, words: list[str]) -> NDArray[np.int32]:
        """Numbers of words, int32; a word that is not known becomes ``<unk>``."""
        unknown, number = self._number[UNKNOWN], self._number
        return np.fromiter((number.get(word, unknown) for word in words), np.int32, len(words))

    def decode(self, numbers: NDArray[np.integer]) -> list[str]:
        """Words of numbers."""
        return [self.words[number] for number in numbers]


class TextSplit(Split):
    """One text, cut into one contiguous stretch a row; every word but the first is predicted exactly once an epoch.

    Row g of G predicts words 1 + g * N // G to (g + 1) * N // G of N + 1, in windows of T. The state of a row is
    reset at the beginning of an epoch and carried from window to window. Rows differ by one word at most; what they
    lack in the last window has weight 0. The order is that of the text in every epoch.

    The sum of weights is N for any number of rows and ranks. The perplexity still depends on the number of rows, in
    that the first words of each stretch are predicted without the past; compare at the same number of global rows.
    """

    def __init__(self, tokens: NDArray[np.int32], length: int) -> None:
        """Take the numbers of a text's words, at least two, and the window T."""
        self.tokens = tokens
        self._length = length

    @property
    def predictions(self) -> int:
        """N, words that are predicted in an epoch."""
        return len(self.tokens) - 1

    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches in an epoch: the windows of the longest row."""
        longest = -(-self.predictions // global_rows)
        return -(-longest // self._length)

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        """See :class:`Split`. The inputs at padding are word 0."""
        if not 0 <= first_row <= first_row + rows <= global_rows:
            raise ValueError(f"rows {first_row} to {first_row + rows} are not within {global_rows}")
        row = np.arange(first_row, first_row + rows, dtype=np.int64)
        begin = row * self.predictions // global_rows
        end = (row + 1) * self.predictions // global_rows
        for step in range(start_step, self.steps(epoch, global_rows)):
            at = begin[:, None] + np.arange(step * self._length, (step + 1) * self._length)
            valid = at < end[:, None]
            at = np.where(valid, at, 0)
            yield Batch(
                inputs=np.where(valid, self.tokens[at], 0).astype(np.int32),
                targets=np.where(valid, self.tokens[at + 1], 0).astype(np.int32),
                weight=valid.astype(np.float32),
                reset=np.full(rows, step == 0),
            )


class TextDataset(Dataset):
    """A corpus with its vocabulary and its three splits."""

    train: TextSplit
    valid: TextSplit
    test: TextSplit

    def __init__(self, settings: TextData) -> None:
        """Read and encode the three files of `settings.path`."""
        if not settings.path:
            raise UserError("data.path: is empty; name the folder that holds the train, valid and test texts")
        self._folder = Path(settings.path)
        files = find_files(self._folder)
        words = {part: read_words(path, settings.limit_tokens) for part, path in files.items()}
        self.vocabulary = Vocabulary(words["train"], settings.max_words)
        self.spec = DataSpec(length=settings.length, vocabulary=len(self.vocabulary))
        splits = {part: TextSplit(self.vocabulary.encode(words[part]), settings.length) for part in PARTS}
        self.train, self.valid, self.test = (splits["train"], splits["valid"], splits["test"])
        self._tokens = {part: len(split.tokens) for part, split in splits.items()}

    def describe(self) -> str:
        """One line for the run's header."""
        counts = " / ".join(f"{self._tokens[part]:,}" for part in PARTS)
        return f"{self._folder}: {counts} words (train / valid / test), vocabulary {len(self.vocabulary):,}"
