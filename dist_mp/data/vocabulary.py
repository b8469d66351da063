"""Words and their numbers, and where the texts of a corpus are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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


class Vocabulary:
    """Words and their numbers, from 0 on: the most frequent first, ties in order of first appearance."""

    def __init__(self, training_words: list[str], max_words: int | None = None) -> None:
        """Take the words of a training text; at most `max_words` with ``<unk>``, which is always among them."""
        self.words: tuple[str, ...] = _ranked(Counter(training_words), max_words)
        self._number = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def from_counts(cls, counts: Counter[str], max_words: int | None = None) -> Vocabulary:
        """The same from the counts of the words, in order of first appearance."""
        return cls.of_words(_ranked(counts, max_words))

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Vocabulary:
        """These words in this order; ``<unk>`` must be among them."""
        if UNKNOWN not in words:
            raise ValueError(f"a vocabulary without {UNKNOWN}")
        made = cls.__new__(cls)
        made.words = tuple(words)
        made._number = {word: number for number, word in enumerate(words)}
        return made

    @property
    def sha256(self) -> str:
        """Tells two vocabularies apart, in hexadecimal."""
        return hashlib.sha256("\n".join(self.words).encode("utf-8")).hexdigest()

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


def _ranked(counts: Counter[str], max_words: int | None) -> tuple[str, ...]:
    if max_words is not None and max_words < 2:
        raise UserError(f"data.max_words: must be at least 2, for {UNKNOWN} and one more word, got {max_words}")
    # Counter keeps the order of first appearance, and its sort is stable.
    ranked = [word for word, _ in counts.most_common()]
    if UNKNOWN not in ranked:
        ranked.append(UNKNOWN)
    if max_words is not None:
        kept = set([word for word in ranked if word != UNKNOWN][: max_words - 1])
        ranked = [word for word in ranked if word in kept or word == UNKNOWN]
    return tuple(ranked)
