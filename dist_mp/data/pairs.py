"""Pairs of sentences for translation: two parallel text files, or a generated task that needs no download.

A window holds whole pairs. `inputs[:, :, 0]` is the source, `inputs[:, :, 1]` what the decoder reads: the target one
step late. Number 0 is padding in both, and for the decoder the beginning of a sentence; words are numbered from 1 on.
Targets have weight 1, the end of the sentence among them, so that a loss is a mean over the target's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import PairsData
from dist_mp.data.base import Batch, Dataset, DataSpec
from dist_mp.data.buckets import BucketSplit, bucket_bounds
from dist_mp.data.vocabulary import END_OF_SENTENCE, Vocabulary
from dist_mp.errors import UserError

BUCKETS = 3
SHORTEST = 3
"""Words of the shortest generated sentence."""
SEED = 7

Sentences = list[list[str]]


class PairSplit(BucketSplit):
    """Pairs in buckets by the length of the longer of the two, the target's end of sentence counted."""

    def __init__(
        self,
        sources: Sequence[NDArray[np.int32]],
        targets: Sequence[NDArray[np.int32]],
        bounds: NDArray[np.int64],
        order_seed: int | None,
    ) -> None:
        """Take word numbers from 1 on, the targets with the end of the sentence; `order_seed` None keeps one order."""
        lengths = np.array([max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)], np.int64)
        super().__init__(sources, np.zeros(len(sources), np.int32), bounds, order_seed, lengths)
        self.targets = targets

    def _batch(self, sequence: NDArray[np.int32], length: int) -> Batch:
        rows = len(sequence)
        inputs = np.zeros((rows, length, 2), np.int32)
        targets, weight = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.float32)
        for row, which in enumerate(sequence.tolist()):
            if which >= 0:
                source, target = self.sequences[which], self.targets[which]
                inputs[row, : len(source), 0] = source
                inputs[row, 1 : len(target), 1] = target[:-1]
                targets[row, : len(target)] = target
                weight[row, : len(target)] = 1.0
        return Batch(inputs, targets, weight, np.ones(rows, np.bool_), sequence.copy(), np.zeros(rows, np.int32))


class PairDataset(Dataset):
    """Sentence pairs, a part of them held out, with a vocabulary for each side."""

    train: PairSplit
    valid: PairSplit

    def __init__(self, settings: PairsData, order_seed: int = 1) -> None:
        """Read or generate the pairs; the vocabularies are those of the training pairs.

        Raises:
            UserError: files that cannot be read or do not belong together, or too few pairs.
        """
        if bool(settings.source) != bool(settings.target):
            given, missing = ("source", "target") if settings.source else ("target", "source")
            raise UserError(f"data.{missing}: is empty, but data.{given} is not; name both files, or none to generate")
        if settings.source:
            pairs = _read_pairs(Path(settings.source), Path(settings.target))
            self._name = f"{settings.source} and {settings.target}"
        else:
            pairs = generate_pairs(settings.samples, settings.symbols, settings.max_length)
            self._name = "generated sentences, reversed and rewritten"
        kept = [(s, t) for s, t in pairs if s and t and max(len(s), len(t)) <= settings.max_length]
        self._left_out = len(pairs) - len(kept)
        order = np.random.default_rng(SEED).permutation(len(kept))
        held = max(1, round(len(kept) * settings.validation_fraction))
        if held >= len(kept):
            raise UserError(
                f"{self._name}: {len(kept)} pairs of at most {settings.max_length} words (data.max_length) are too "
                "few to hold one out"
            )
        parts = {"valid": np.sort(order[:held]), "train": np.sort(order[held:])}
        self.source, self.target = (
            Vocabulary([word for i in parts["train"].tolist() for word in [*kept[i][side], *end]], settings.max_words)
            for side, end in ((0, ()), (1, (END_OF_SENTENCE,)))
        )
        sources = [self.source.encode(s) + 1 for s, _ in kept]
        targets = [self.target.encode([*t, END_OF_SENTENCE]) + 1 for _, t in kept]
        bounds = bucket_bounds(np.array([max(map(len, pair)) for pair in zip(sources, targets, strict=True)]), BUCKETS)

        def split(numbers: NDArray[np.int64], seed: int | None) -> PairSplit:
            chosen = numbers.tolist()
            return PairSplit([sources[i] for i in chosen], [targets[i] for i in chosen], bounds, seed)

        self.train, self.valid = split(parts["train"], order_seed), split(parts["valid"], None)
        self.spec = DataSpec(
            length=int(bounds[-1]), vocabulary=len(self.source) + 1, target_vocabulary=len(self.target) + 1
        )

    def describe(self) -> str:
        """One line for the run's header."""
        counts = " / ".join(f"{len(s.sequences):,}" for s in (self.train, self.valid))
        left = f", {self._left_out:,} too long or empty left out" if self._left_out else ""
        words = f"{len(self.source):,} and {len(self.target):,} words"
        return f"{self._name}: {counts} pairs (train / valid), up to {self.spec.length} steps, {words}{left}"


def generate_pairs(count: int, symbols: int, longest: int) -> list[tuple[list[str], list[str]]]:
    """Pairs of random sentences of `SHORTEST` to `longest` words and their rewriting: reversed, each word replaced.

    A word's replacement depends on whether the word before it in the source is of an even number: a model has to look
    at the right place, and around it.
    """
    longest = max(longest, SHORTEST)
    rng = np.random.default_rng((SEED, symbols, longest))
    rewritten = np.stack([rng.permutation(symbols) for _ in range(2)])
    pairs = []
    for _ in range(count):
        source = rng.integers(symbols, size=rng.integers(SHORTEST, longest + 1))
        before = np.concatenate([[0], source[:-1]]) % 2
        target = rewritten[before, source][::-1]
        pairs.append(([f"s{word}" for word in source], [f"t{word}" for word in target]))
    return pairs


def _read_pairs(source: Path, target: Path) -> list[tuple[list[str], list[str]]]:
    first, second = _read_lines(source), _read_lines(target)
    if len(first) != len(second):
        raise UserError(
            f"{target}: {len(second):,} lines, but {source} has {len(first):,}; line n of one translates line n of the "
            "other"
        )
    return list(zip(first, second, strict=True))


def _read_lines(path: Path) -> Sentences:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from error
    # Only line ends separate pairs; splitlines would also split at other signs of Unicode.
    lines = text.replace("\r\n", "\n").split("\n")
    return [line.split() for line in (lines[:-1] if lines[-1] == "" else lines)]
