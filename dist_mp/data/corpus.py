"""A corpus that was encoded once: for texts that are large, or opened by many ranks.

FOLDER/index.json       numbers of words, and name, size and sha256 of the texts and of the vocabulary
FOLDER/vocabulary.txt   a word a line; the line is its number, from 0 on
FOLDER/PART.npy         int32, the words of train, valid and test; memory-mapped, so that the ranks of a node share them

The texts are read line by line, twice for the training text; at no time is more than one line of them in memory.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.folder import new_folder
from dist_mp.data.vocabulary import END_OF_SENTENCE, PARTS, Vocabulary, find_files
from dist_mp.errors import UserError

INDEX = "index.json"
FORMAT = "dist-mp corpus 1"
MAX_LINE_BYTES = 1 << 26


class _Text:
    """The words of a text, line by line, with its size and checksum when all were read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def lines(self) -> Iterator[list[str]]:
        """Words of each line, with ``<eos>`` at its end; refuses what is not UTF-8 text, naming the line."""
        path = self._path
        try:
            with path.open("rb") as file:
                number = 0
                while raw := file.readline(MAX_LINE_BYTES + 1):
                    number += 1
                    where = f"{path}, line {number}"
                    if len(raw) > MAX_LINE_BYTES:
                        raise UserError(f"{where}: is longer than {MAX_LINE_BYTES >> 20} MiB; one sentence a line")
                    self._digest.update(raw)
                    self.size += len(raw)
                    yield [*_decode(raw, where, number == 1).split(), END_OF_SENTENCE]
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _decode(raw: bytes, where: str, first: bool) -> str:
    try:
        text = raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start} of the line is not UTF-8; convert the file to UTF-8") from error
    if "\0" in text:
        raise UserError(f"{where}: a zero byte; the file is not UTF-8 text")
    return text


@dataclass(frozen=True)
class CorpusSummary:
    """What was encoded."""

    tokens: dict[str, int]
    vocabulary: int


def prepare_corpus(folder: Path, out: Path, max_words: int | None = None) -> CorpusSummary:
    """Count the words of the training text, and write all three texts as word numbers to the new folder `out`."""
    files = find_files(folder)
    counts: Counter[str] = Counter()
    for words in _Text(files["train"]).lines():
        counts.update(words)
    if not counts:
        raise UserError(f"{files['train']}: holds no words; one sentence a line is expected")
    vocabulary = Vocabulary.from_counts(counts, max_words)
    tokens: dict[str, int] = {}
    sources: dict[str, Any] = {}
    with new_folder(out) as partial:
        for part, path in files.items():
            text, numbers = _Text(path), array("i")
            for words in text.lines():
                numbers.extend(vocabulary.encode(words).tolist())
            if len(numbers) < 2:
                raise UserError(f"{path}: needs at least two words, to predict one from the other")
            np.save(partial / f"{part}.npy", np.frombuffer(numbers, np.int32), allow_pickle=False)
            tokens[part] = len(numbers)
            sources[part] = {"file": path.name, "bytes": text.size, "sha256": text.sha256}
        listed = "".join(f"{word}\n" for word in vocabulary.words)
        (partial / "vocabulary.txt").write_text(listed, encoding="utf-8")
        index = {
            "format": FORMAT,
            "tokens": tokens,
            "max_words": max_words,
            "vocabulary": {"words": len(vocabulary), "sha256": vocabulary.sha256},
            "sources": sources,
        }
        (partial / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return CorpusSummary(tokens, len(vocabulary))


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus."""

    vocabulary: Vocabulary
    tokens: dict[str, NDArray[np.int32]]
    """By part, memory-mapped."""
    max_words: int | None


def is_corpus(folder: Path) -> bool:
    """Whether a folder says that it is a prepared corpus."""
    try:
        with (folder / INDEX).open("rb") as file:
            return FORMAT.encode() in file.read(200)
    except OSError:
        return False


def open_corpus(folder: Path) -> Corpus:
    """Map the texts of a prepared corpus; refuses files that do not belong together."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index["format"] != FORMAT:
            raise ValueError(f"its format is {index['format']!r}, known is {FORMAT!r}")
        words = (folder / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:-1]
        vocabulary = Vocabulary.of_words(words)
        if vocabulary.sha256 != index["vocabulary"]["sha256"] or len(set(words)) != len(words):
            raise ValueError("vocabulary.txt is not the one that it was encoded with")
        tokens: dict[str, NDArray[np.int32]] = {}
        for part in PARTS:
            mapped = np.lib.format.open_memmap(folder / f"{part}.npy", mode="r")
            if mapped.dtype != np.int32 or mapped.shape != (index["tokens"][part],) or len(mapped) < 2:
                raise ValueError(f"{part}.npy holds {mapped.dtype} {mapped.shape}, not what the index says")
            tokens[part] = mapped
        return Corpus(vocabulary, tokens, index["max_words"])
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{folder}: not a whole prepared corpus ({reason}); prepare it again") from error
