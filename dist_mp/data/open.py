"""From the settings to the data set they name."""

from __future__ import annotations

from dist_mp.config import Config, TextData
from dist_mp.data.base import Dataset
from dist_mp.data.shots import ShotDataset
from dist_mp.data.text import TextDataset


def open_dataset(config: Config) -> Dataset:
    """The data set of `config.data`; every rank opens the same one and later reads only its own rows."""
    if isinstance(config.data, TextData):
        return TextDataset(config.data)
    return ShotDataset.from_config(config)
