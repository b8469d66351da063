"""A run as the report sees it: its records, its settings, and a label that no other run of the page has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from dist_mp.config import Config
from dist_mp.experiments.run_reader import RunData, number, read_run
from dist_mp.experiments.run_state import Snapshot, snapshot

LONGEST_LABEL = 60


@dataclass(frozen=True)
class Run:
    """One run of the page."""

    number: int
    label: str
    data: RunData
    shot: Snapshot
    settings: dict[str, str]
    """Dotted path to value, as the run folder's config.yaml has them; empty where it cannot be read."""
    defaults: dict[str, str]
    """The same paths with the values that they have where nothing is set; empty where unknown."""

    @property
    def elapsed(self) -> NDArray[np.float64]:
        """Seconds since the start at each step record, without stops and without the time of steps done again.

        Float64 [steps]; NaN where the records have no time.
        """
        times = self.data.column("time")
        if not len(times):
            return times
        begun = number(self.data.starts[0].get("time")) if self.data.starts else times[0]
        gaps = np.diff(times, prepend=begun)
        for start in self.data.starts[1:]:
            moment = number(start.get("time"))
            after = int(np.searchsorted(times, moment))
            if after < len(times):
                gaps[after] = times[after] - moment
        return np.cumsum(np.maximum(gaps, 0.0))


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the runs in `folders`.

    Raises:
        UserError: one of them is no run folder.
    """
    datas = [read_run(folder) for folder in folders]
    runs = []
    for index, (data, label) in enumerate(zip(datas, labels([data.folder for data in datas]), strict=True)):
        settings = flat_settings(data.folder / "config.yaml")
        runs.append(Run(index, label, data, snapshot(data), settings, _defaults(settings)))
    return runs


def labels(folders: Sequence[Path]) -> list[str]:
    """Names of the folders, with as much of their paths as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    depth = 1
    while depth < max(map(len, parts)) and len({p[-depth:] for p in parts}) < len(set(parts)):
        depth += 1
    names = ["/".join(p[-depth:]) for p in parts]
    return [name if len(name) <= LONGEST_LABEL else "…" + name[1 - LONGEST_LABEL :] for name in names]


def flat_settings(path: Path) -> dict[str, str]:
    """The settings in a YAML file by dotted path; empty where there is none that can be read."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, yaml.YAMLError, RecursionError):
        return {}
    return _flat(document) if isinstance(document, Mapping) else {}


def _flat(section: Mapping[Any, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        flat |= _flat(value, f"{path}.") if isinstance(value, Mapping) else {path: scalar(value)}
    return flat


def scalar(value: object) -> str:
    """A setting's value as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _defaults(settings: Mapping[str, str]) -> dict[str, str]:
    """The defaults of a configuration whose sections are of the same kinds."""
    kinds = {name: {"kind": settings[f"{name}.kind"]} for name in ("data", "model") if f"{name}.kind" in settings}
    try:
        return _flat(Config.model_validate(kinds).model_dump(mode="json"))
    except ValueError:  # a kind of a later version, or one with settings that must be given
        return {}
