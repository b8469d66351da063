"""Generated spectrograms: repeatable, of unequal length, and only the order of the sounds tells some words apart."""

from __future__ import annotations

import numpy as np

from dist_mp.data.tones import CHANNELS, WORDS, spectrogram, tones_dataset


def test_the_same_seed_gives_the_same_samples_and_each_class_is_there() -> None:
    first, second, other = tones_dataset(80), tones_dataset(80), tones_dataset(80, seed=8)
    assert first.spec.classes == len(WORDS) == 8 and first.spec.channels == CHANNELS
    batch, again, different = (next(d.train.batches(0, 16, 0, 16)) for d in (first, second, other))
    np.testing.assert_array_equal(batch.inputs, again.inputs)
    assert batch.inputs.shape != different.inputs.shape or np.any(batch.inputs != different.inputs)
    assert len(first.train.sequences) + len(first.valid.sequences) == 80 and len(first.test.sequences) == 16
    assert set(first.train.labels) == set(range(8))
    assert len({len(s) for s in first.train.sequences}) > 5


def test_words_of_the_same_sounds_differ_in_their_order_alone() -> None:
    """Averaged over time, words of the same three sounds look alike; over time they do not."""
    same = [k for k, word in enumerate(WORDS) if set(word) == set(WORDS[0])]
    assert len(same) >= 2
    means = []
    for word in same[:2]:
        samples = [spectrogram(word, np.random.default_rng(k)) for k in range(300)]
        means.append(np.mean([s.mean(axis=0) for s in samples], axis=0))
        assert {s.shape[1] for s in samples} == {CHANNELS}
    np.testing.assert_allclose(*means, atol=0.03)
