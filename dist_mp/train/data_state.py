"""What a run keeps of its data, for predictions: `data.json` in the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dist_mp.data.base import Dataset
from dist_mp.errors import UserError
from dist_mp.train.run_folder import write_text

FILE = "data.json"


def write_data_state(folder: Path, dataset: Dataset) -> None:
    """Write vocabulary, classes and scale of a run's data into its folder."""
    write_text(folder / FILE, json.dumps(dataset.state()) + "\n")


def read_data_state(folder: Path) -> dict[str, Any]:
    """What :func:`write_data_state` wrote.

    Raises:
        UserError: there is none, or something else.
    """
    path = folder / FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; what the run kept of its data") from error
    except ValueError as error:
        raise UserError(f"{path}: is damaged: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: is damaged: not what a run kept of its data")
    return state
