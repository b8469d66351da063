"""A small generated campaign for the jobs of these tests: slow until the file `fast` lies in the working folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dist_mp.config import CampaignData, Config
from dist_mp.data.base import Batch, Dataset
from dist_mp.data.open import open_dataset


def slowly(config: Config) -> Dataset:
    """The campaign, with a fifth of a second for each batch."""
    small = CampaignData(
        shots=24,
        min_steps=40,
        max_steps=90,
        profile_points=24,
        length=16,
        warning_steps=20,
        deadline_steps=3,
        ignore_steps=2,
    )
    dataset = open_dataset(config.model_copy(update={"data": small}))
    batches = dataset.train.batches

    def slow(*args: Any, **options: Any) -> Iterator[Batch]:
        for batch in batches(*args, **options):
            if not Path("fast").exists():
                time.sleep(0.2)
            yield batch

    dataset.train.batches = slow  # type: ignore[method-assign]
    return dataset
