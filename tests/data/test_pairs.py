"""Sentence pairs: files, the generated task, batches with their masks, mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dist_mp.config import PairsData
from dist_mp.data.pairs import PairDataset, generate_pairs
from dist_mp.data.vocabulary import END_OF_SENTENCE
from dist_mp.errors import UserError

LINES = [("ein Haus", "a house"), ("das ist gut so", "that is good"), ("", "empty"), ("ja", "oh yes indeed it is"),
         ("noch ein Haus", "one more house"), ("gut", "good")]  # fmt: skip


def files(folder: Path, lines: list[tuple[str, str]] = LINES) -> PairsData:
    for side, name in enumerate(("text.de", "text.en")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in lines), encoding="utf-8")
    return PairsData(source=str(folder / "text.de"), target=str(folder / "text.en"), max_length=4)


def test_batches_hold_whole_pairs_and_say_where_they_end(tmp_path: Path) -> None:
    dataset = PairDataset(files(tmp_path))
    assert "2 too long or empty left out" in dataset.describe()
    seen = []
    for split in (dataset.train, dataset.valid):
        for batch in split.batches(0, 2, 0, 2):
            assert batch.inputs.shape == (*batch.targets.shape, 2) and batch.inputs.dtype == np.int32
            assert batch.sequence is not None
            for row in np.flatnonzero(batch.sequence >= 0):
                words = batch.inputs[row, :, 0]
                source = dataset.source.decode(words[words > 0] - 1)
                valid = batch.weight[row] > 0
                target = dataset.target.decode(batch.targets[row, valid] - 1)
                assert target[-1] == END_OF_SENTENCE
                seen.append((" ".join(source), " ".join(target[:-1])))
                np.testing.assert_array_equal(batch.inputs[row, 1 : valid.sum(), 1], batch.targets[row, valid][:-1])
                assert batch.inputs[row, 0, 1] == 0 and not np.any(batch.inputs[row, valid.sum() :, 1])
            idle = batch.sequence < 0
            assert not batch.inputs[idle].any() and not batch.weight[idle].any()
    known = {pair for k, pair in enumerate(LINES) if k not in (2, 3)}
    # A held-out word that training lacks is <unk>.
    assert len(seen) == 4 and sum(pair in known for pair in seen) >= 3
    assert dataset.spec.vocabulary == len(dataset.source) + 1 and dataset.spec.target_vocabulary > 5


def test_generated_pairs_follow_one_rule_and_repeat() -> None:
    pairs = generate_pairs(2000, 6, 9)
    assert pairs == generate_pairs(2000, 6, 9) and pairs != generate_pairs(2000, 7, 9)
    assert {len(source) for source, _ in pairs} == set(range(3, 10))
    rule: dict[tuple[bool, str], str] = {}
    for source, target in pairs:
        before = [False, *(int(word[1:]) % 2 == 1 for word in source[:-1])]
        for key, word in zip(zip(before, source, strict=True), target[::-1], strict=True):
            assert rule.setdefault(key, word) == word
    assert len(rule) == 12 and any(rule[False, word] != rule[True, word] for _, word in rule)
    dataset = PairDataset(PairsData(samples=50, max_length=6))
    assert len(dataset.valid.sequences) == 5 and len(dataset.train.sequences) == 45


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    settings = files(tmp_path)
    with pytest.raises(UserError, match=r"data.target: is empty, but data.source is not"):
        PairDataset(PairsData(source="x"))
    with pytest.raises(UserError, match="no-such: cannot be read"):
        PairDataset(PairsData(source="no-such", target="x"))
    (tmp_path / "text.en").write_text("one\n")
    with pytest.raises(UserError, match=r"text\.en: 1 lines, but .*text.de has 6; line n"):
        PairDataset(settings)
    (tmp_path / "text.en").write_bytes(b"\xff\n" * 6)
    with pytest.raises(UserError, match="byte 0 is not UTF-8"):
        PairDataset(settings)
    with pytest.raises(UserError, match=r"1 pairs of at most 4 words .* too few"):
        PairDataset(files(tmp_path, [("a", "b")]))
