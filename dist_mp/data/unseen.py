"""Data that a trained model has not seen, with the vocabulary, classes and scale of those that it was trained on.

What a run keeps of its data is :meth:`dist_mp.data.base.Dataset.state`; nothing is fitted here, but where the user asks
for the scale of another machine's own shots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import CampaignData, Config, LabelledData, ShotsData, TextData
from dist_mp.data.arrays import sample_arrays
from dist_mp.data.base import DataSpec, Split
from dist_mp.data.buckets import BucketSplit
from dist_mp.data.corpus import is_corpus, open_corpus
from dist_mp.data.detect import KINDS, detect
from dist_mp.data.images import cifar_part, idx_part
from dist_mp.data.labelled import Scaled
from dist_mp.data.matched import MatchedShots
from dist_mp.data.normalise import Normaliser, feature_widths
from dist_mp.data.processed import ProcessedShots
from dist_mp.data.reviews import CLASSES, read_plain, read_reviews, tokenise
from dist_mp.data.shots import ShotCache, ShotSplit
from dist_mp.data.text import StretchSplit, read_words
from dist_mp.data.ts import read_ts
from dist_mp.data.vocabulary import END_OF_SENTENCE, Vocabulary, find_files
from dist_mp.errors import UserError


@dataclass(frozen=True)
class Unseen:
    """Data to predict on."""

    split: Split
    names: Sequence[str] = ()
    """Of labelled sequences, by their number."""
    classes: Sequence[str] = ()
    """Of labelled sequences."""
    known: bool = True
    """Whether labels came with them."""
    line_of: NDArray[np.int64] | None = None
    """Of a text: the number of the line that each word is in, from 1 on."""


def open_unseen(
    config: Config, spec: DataSpec, state: Mapping[str, Any], path: Path, part: str, own_scale: bool = False
) -> Unseen:
    """Open `path` for a model that was trained with `config` on data of `spec` that left `state`.

    Of data with a training and a test part, `part` says which. `own_scale` fits the scale of shots on these shots.

    Raises:
        UserError: data of another kind or shape, or of a kind that only the run's own data set can open.
    """
    data = config.data
    if not state:
        raise UserError(f"a run with data.kind {data.kind} kept nothing of its data; it predicts on its own data only")
    if isinstance(data, CampaignData | ShotsData):
        return _shots(data, getattr(config.model, "target", "hinge"), state, path, own_scale)
    if own_scale:
        raise UserError("--scale own: only shots have a scale of their own")
    if isinstance(data, TextData):
        return _text(data, state, path, part)
    if isinstance(data, LabelledData):
        return _labelled(data, spec, state, path, part)
    raise UserError(f"a run with data.kind {data.kind} predicts on its own data only; leave DATA out")


def _shots(
    data: CampaignData | ShotsData, target: str, state: Mapping[str, Any], path: Path, own_scale: bool
) -> Unseen:
    kind, path = detect(path)
    if kind != "shots":
        hint = f"; prepare them first: dist-mp data prepare {path} OUT" if kind in ("raw", "frnn") else ""
        raise UserError(f"{path}: is {KINDS[kind]}, but the model predicts on {KINDS['shots']}{hint}")
    points = int(state["profile_points"])
    names = state["scalars"], state["profiles"]
    shots = MatchedShots(ProcessedShots(path), str(path), *names, points, float(state["step_milliseconds"]))
    widths = feature_widths(len(names[0]), len(names[1]), points)
    average = data.average_steps if data.normaliser == "averaged" else 1
    normaliser = Normaliser(np.array(state["mean"], np.float32), np.array(state["scale"], np.float32), widths, average)
    count = len(shots.lengths)
    if own_scale:
        known = [shots.statistics(index) for index in range(count)]
        normaliser = Normaliser.from_statistics(known, widths, data.normaliser, data.average_steps)
    indices = np.arange(count)
    return Unseen(
        ShotSplit(
            ShotCache(shots),
            normaliser,
            indices,
            shots.lengths,
            shots.disruptive,
            data,
            target,
            None,
            shots.numbers,
        )
    )


def _text(data: TextData, state: Mapping[str, Any], path: Path, part: str) -> Unseen:
    vocabulary = Vocabulary.of_words(state["words"])
    if path.is_dir() and is_corpus(path):
        corpus = open_corpus(path)
        tokens = vocabulary.encode(list(corpus.vocabulary.words))[corpus.tokens[part]]
        ends = corpus.tokens[part] == corpus.vocabulary.encode([END_OF_SENTENCE])[0]
    else:
        if path.is_dir():
            path = find_files(path)[part]
        if not path.is_file():
            raise UserError(f"{path}: no such file or folder; a text, or a folder of three, is expected")
        words = read_words(path)
        tokens = vocabulary.encode(words)
        ends = np.array([word == END_OF_SENTENCE for word in words])
    # A word is in the line that the next <eos>, itself included, ends.
    line_of = 1 + np.concatenate([[0], np.cumsum(ends)[:-1]])
    return Unseen(StretchSplit(tokens, data.length), line_of=line_of)


def _labelled(data: LabelledData, spec: DataSpec, state: Mapping[str, Any], path: Path, part: str) -> Unseen:
    classes, bounds = state["classes"], np.array(state["bounds"], np.int64)
    samples: Any
    labels: NDArray[np.int32] | None
    if data.format == "reviews":
        vocabulary = Vocabulary.of_words(state["words"])
        if path.is_dir() and any(path.glob("*.txt")):
            reviews, labelled = read_plain(path), False
        else:
            reviews, labelled = [review for review in read_reviews(path) if review.part == part], True
        encoded = [vocabulary.encode(tokenise(review.text)) for review in reviews]
        names = [
            f"{review.part}/{CLASSES[review.label]}/{review.name}" if labelled else review.name for review in reviews
        ]
        marks = np.array([review.label for review in reviews], np.int32)
        return Unseen(BucketSplit(encoded, marks, bounds, None), names, classes, labelled)
    if data.format == "series":
        if path.is_dir():
            path = detect(path)[1]
            path = path.with_name(path.name.removesuffix("_TRAIN.ts") + f"_{part.upper()}.ts")
        read = read_ts(path, tuple(classes))
        samples, labels = read.series, read.labels if read.classes else None
    elif data.format == "idx":
        samples, labels = idx_part(path, part)
    elif data.format == "cifar":
        samples, labels = cifar_part(path, part)
    elif data.format == "arrays":
        samples, labels = sample_arrays(path, part, data.max_words if spec.vocabulary else None)
    else:
        raise UserError(f"a run with data.format {data.format} predicts on its own data only; leave DATA out")
    _check(path, samples, labels, spec, len(classes))
    sequences: Sequence[NDArray] = samples
    count = len(samples)
    if spec.vocabulary:
        sequences = [np.where(words < spec.vocabulary, words, 0).astype(np.int32) for words in samples]
    elif data.format == "series":
        moments = [np.array(state[name], np.float64) for name in ("mean", "scale")]
        sequences = [((values - moments[0]) / moments[1]).astype(np.float32) for values in samples]
    else:
        mean, scale = (np.array(state[name], np.float32) for name in ("mean", "scale"))
        sequences = Scaled(samples, np.arange(count), mean, scale)
    marks = np.zeros(count, np.int32) if labels is None else labels
    lengths = np.array([len(samples[i]) for i in range(count)], np.int64)
    split = BucketSplit(sequences, marks, bounds, None, lengths)
    return Unseen(split, [str(i) for i in range(count)], classes, labels is not None)


def _check(path: Path, samples: Any, labels: NDArray[np.int32] | None, spec: DataSpec, classes: int) -> None:
    """Refuse samples of another shape than those trained on."""
    if not len(samples):
        raise UserError(f"{path}: no samples")
    first = np.asarray(samples[0])
    words = first.ndim == 1
    if words != bool(spec.vocabulary):
        raise UserError(f"{path}: holds {'words' if words else 'features'}, the model was trained on the other")
    if not words:
        channels = int(np.prod(first.shape[1:]))
        width = first.shape[1] if first.dtype == np.uint8 else 0
        if channels != spec.channels or width != spec.width or (width and len(first) != spec.length):
            known = f"{spec.length} x {spec.width} images" if spec.width else f"{spec.channels} channels"
            raise UserError(f"{path}: samples of shape {first.shape}; the model was trained on {known}")
    if labels is not None and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(f"{path}: a class is outside 0 to {classes - 1}, the classes that the model knows")
