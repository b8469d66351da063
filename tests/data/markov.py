"""A small seeded corpus for tests: sentences of a Markov chain over invented words."""

from pathlib import Path

import numpy as np

WORDS = [f"w{number}" for number in range(30)]


def markov_sentences(count: int, seed: int) -> list[str]:
    """Sentences of 1 to 12 words; each word favours two successors, so that a model can learn."""
    chain = np.random.default_rng(0).integers(0, len(WORDS), (len(WORDS), 2))
    rng = np.random.default_rng([seed, 1])
    sentences = []
    for _ in range(count):
        word, sentence = int(rng.integers(len(WORDS))), []
        for _ in range(int(rng.integers(1, 13))):
            sentence.append(WORDS[word])
            word = int(chain[word, rng.integers(2)]) if rng.random() < 0.9 else int(rng.integers(len(WORDS)))
        sentences.append(" ".join(sentence))
    return sentences


def write_corpus(folder: Path, sentences: int = 60) -> Path:
    """Write the three files of a corpus in the Penn Tree Bank format; returns the folder."""
    for seed, (part, count) in enumerate((("train", sentences), ("valid", sentences // 4), ("test", sentences // 4))):
        text = "".join(f" {sentence} \n" for sentence in markov_sentences(count, seed))
        (folder / f"markov.{part}.txt").write_text(text, encoding="utf-8")
    return folder
