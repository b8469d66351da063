"""From the settings to the data set they name."""

from __future__ import annotations

from pathlib import Path

from dist_mp.config import Config, LabelledData, ModuleData, PairsData, ShapesData, TextData
from dist_mp.data.arrays import array_dataset
from dist_mp.data.base import Dataset
from dist_mp.data.custom import custom_dataset
from dist_mp.data.images import cifar_dataset, idx_dataset
from dist_mp.data.pairs import PairDataset
from dist_mp.data.reviews import ReviewDataset
from dist_mp.data.shapes import ShapeDataset, shapes_dataset
from dist_mp.data.shots import ShotDataset
from dist_mp.data.text import TextDataset
from dist_mp.data.tones import tones_dataset
from dist_mp.data.ts import SeriesDataset
from dist_mp.errors import UserError


def open_dataset(config: Config) -> Dataset:
    """The data set of `config.data`; every rank opens the same one and later reads only its own rows."""
    if isinstance(config.data, TextData):
        return TextDataset(config.data)
    if isinstance(config.data, LabelledData):
        return _labelled(config.data, config.seed)
    if isinstance(config.data, PairsData):
        return PairDataset(config.data, config.seed)
    if isinstance(config.data, ShapesData):
        return ShapeDataset(config.data, config.seed)
    if isinstance(config.data, ModuleData):
        return custom_dataset(config, config.data.factory)
    return ShotDataset.from_config(config)


def _labelled(data: LabelledData, seed: int) -> Dataset:
    if data.format in ("tones", "shapes"):
        if data.path:
            raise UserError(f"data.path: {data.path!r}, but {data.format} are generated; leave it empty")
    elif not data.path:
        raise UserError("data.path is empty: name the file or folder with the labelled samples")
    path, held_out = Path(data.path), data.validation_fraction
    match data.format:
        case "reviews":
            return ReviewDataset(path, data.max_words, data.max_length, validation_fraction=held_out, order_seed=seed)
        case "series":
            return SeriesDataset(path, validation_fraction=held_out, order_seed=seed)
        case "idx":
            return idx_dataset(path, held_out, seed)
        case "cifar":
            return cifar_dataset(path, held_out, seed)
        case "arrays":
            return array_dataset(path, data.max_words, data.max_length, held_out, seed)
        case "tones":
            return tones_dataset(data.samples, held_out, seed)
        case "shapes":
            return shapes_dataset(data.samples, held_out, seed)
