"""Generated spectrograms of spoken-like words: a labelled data set for recurrent classifiers that needs no download.

A word is three sounds out of four; a sound is a track of raised energy that glides from one frequency to another. The
words are made of the same sounds in other orders, so that a model has to follow them over time. Length, pitch and
loudness of each sample differ, its beginning and end are silent, and noise lies over all of it.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.labelled import Labelled, LabelledDataset

CHANNELS = 24
SOUNDS = ((0.2, 0.2), (0.2, 0.7), (0.7, 0.3), (0.7, 0.7))
"""Where each sound begins and ends, as shares of the range of frequencies."""
WORDS = tuple(permutations(range(len(SOUNDS)), 3))[::3]
"""Every third order of three different sounds: eight words."""
NOISE = 0.7
TEST_SHARE = 5
"""One test sample comes on so many others."""


def spectrogram(word: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """One sample of a word: energies [L, CHANNELS], L from 22 to 70."""
    pitch, loudness = rng.uniform(-0.12, 0.12), rng.uniform(0.7, 1.3)
    tracks = [np.full(int(rng.integers(2, 9)), np.nan)]
    for sound in WORDS[word]:
        begin, end = SOUNDS[sound]
        tracks.append(np.linspace(begin, end, int(rng.integers(6, 19))) + pitch)
    tracks.append(np.full(int(rng.integers(2, 9)), np.nan))
    track = np.concatenate(tracks)
    distance = np.arange(CHANNELS) / (CHANNELS - 1) - track[:, None]
    energy = np.where(np.isnan(distance), 0.0, loudness * np.exp(-0.5 * (distance / 0.06) ** 2))
    return (energy + rng.normal(scale=NOISE, size=energy.shape)).astype(np.float32)


def tones_dataset(
    samples: int, validation_fraction: float = 0.1, order_seed: int = 1, seed: int = 7
) -> LabelledDataset:
    """So many training samples, words in turn, and a fifth as many to test on; the same for the same `seed`."""
    samples = max(samples, 2 * len(WORDS))

    def part(count: int, number: int) -> Labelled:
        rng = np.random.default_rng((seed, number))
        labels = (np.arange(count) % len(WORDS)).astype(np.int32)
        return Labelled([spectrogram(int(label), rng) for label in labels], labels)

    names = ["".join("abcd"[sound] for sound in word) for word in WORDS]
    return LabelledDataset(
        "generated tones",
        part(samples, 0),
        part(max(samples // TEST_SHARE, len(WORDS)), 1),
        names,
        buckets=2,
        validation_fraction=validation_fraction,
        order_seed=order_seed,
    )
