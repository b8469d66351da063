"""Reads the records of a run folder: all at once or bit by bit while the run writes them."""

from __future__ import annotations

import bisect
import json
import math
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.errors import UserError

STEP_COLUMNS = (
    "time", "step", "epoch", "loss", "learning_rate", "loss_scale", "applied", "gradient_norm", "seconds",
    "samples_per_second", "steps_per_second", "share_compute", "share_exchange", "share_wait", "share_input",
    "sent_bytes",
)  # fmt: skip
PARTS = ("compute", "exchange", "wait", "input")
"""Where the time of a rank goes."""
HEAD_BYTES = 512
"""By these the file is known again; they hold the moment of the first start."""
METRICS_FILE = "metrics.jsonl"


def _no_times() -> NDArray[np.float64]:
    return np.zeros((len(PARTS), 0))


@dataclass
class RunData:
    """What a run has written so far.

    Where a step was done twice, because the run went on from before it, the later record holds.
    """

    folder: Path
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Start records, oldest first."""
    columns: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in STEP_COLUMNS})
    """Fields of the step records; NaN where a field is null or missing. Steps ascend."""
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Epoch records by epoch; ``at_step`` says after how many steps."""
    rank_seconds: NDArray[np.float64] = field(default_factory=_no_times)
    """Seconds since the last start of each part of PARTS and each rank, [4, ranks]."""
    rank_steps: int = 0
    """Steps that `rank_seconds` is the sum over."""
    last_ranks: NDArray[np.float64] = field(default_factory=_no_times)
    """Seconds a step of the newest ranks record, [4, ranks]."""
    checks: int = 0
    """Comparisons of the weights that found them equal."""
    summary: dict[str, Any] | None = None
    """The summary record, if the run has ended since its last start."""
    stopped_by: str = ""
    """Name of the signal that stopped the run since its last start."""
    last_time: float | None = None
    """Moment of the newest record (s since 1970)."""
    repeated_steps: int = 0
    """Step records that later ones replaced."""
    bad_lines: int = 0
    """Lines that are no records: damaged, or cut off by a crash."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    def column(self, name: str) -> NDArray[np.float64]:
        """A field of the step records, float64 [steps]; a copy."""
        return np.array(self.columns[name], dtype=np.float64)

    def __len__(self) -> int:
        """Step records."""
        return len(self.columns["step"])

    @property
    def start(self) -> dict[str, Any]:
        """The newest start record; empty where there is none."""
        return self.starts[-1] if self.starts else {}


class RunReader:
    """Follows the file of records of one run."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet.

        Raises:
            UserError: `folder` is no run folder.
        """
        self.folder = folder
        self._path = run_folder(folder) / METRICS_FILE
        self._head = b""
        self._offset = 0
        self.data = RunData(folder)

    def poll(self) -> bool:
        """Read what is new; returns whether there was any. A line that is still being written waits for its end."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"{self._path}: cannot be read ({error.strerror})") from error
        with file:
            if file.read(len(self._head)) != self._head or file.seek(0, os.SEEK_END) < self._offset:
                # Another file took its place, or it was cut: what was read holds no longer.
                self._offset, self.data = 0, RunData(self.folder)
            file.seek(self._offset)
            begin = self._offset
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._line(line)
            file.seek(0)
            self._head = file.read(min(self._offset, HEAD_BYTES))
        return self._offset > begin

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            record = json.loads(line)
            take = getattr(self, f"_take_{record['kind']}", None)
            if take is not None:  # a kind that a later version writes is passed over
                take(record)
                moment = number(record.get("time"))
                self.data.last_time = self.data.last_time if math.isnan(moment) else moment
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.data.bad_lines += 1

    def _take_start(self, record: dict[str, Any]) -> None:
        data, ranks = self.data, int(record["ranks"])
        self._forget(int(record["step"]))
        data.starts.append(record)
        data.summary, data.stopped_by = None, ""
        data.rank_seconds, data.rank_steps = np.zeros((len(PARTS), ranks)), 0
        data.last_ranks = _no_times()

    def _take_step(self, record: dict[str, Any]) -> None:
        data, step = self.data, int(record["step"])
        if data.columns["step"] and step <= data.columns["step"][-1]:
            self._forget(step)
        for name in STEP_COLUMNS:
            data.columns[name].append(number(record.get(name)))

    def _take_ranks(self, record: dict[str, Any]) -> None:
        data, steps = self.data, int(record["steps"])
        means = np.array([[number(v) for v in record[part]] for part in PARTS], dtype=np.float64)
        if data.rank_seconds.shape != means.shape:
            data.rank_seconds, data.rank_steps = np.zeros_like(means), 0
        data.rank_seconds = data.rank_seconds + means * steps
        data.rank_steps += steps
        data.last_ranks = means

    def _take_epoch(self, record: dict[str, Any]) -> None:
        steps = self.data.columns["step"]
        metrics = {str(name): number(value) for name, value in record["metrics"].items()}
        at_step = int(steps[-1]) + 1 if steps else 0
        self.data.epochs[int(record["epoch"])] = record | {"metrics": metrics, "at_step": at_step}

    def _take_check(self, record: dict[str, Any]) -> None:
        self.data.checks += 1

    def _take_stop(self, record: dict[str, Any]) -> None:
        self.data.stopped_by = str(record["signal"])

    def _take_summary(self, record: dict[str, Any]) -> None:
        self.data.summary = record

    def _forget(self, step: int) -> None:
        """Drop the records from `step` on, which are done again."""
        data = self.data
        keep = bisect.bisect_left(data.columns["step"], step)
        data.repeated_steps += len(data) - keep
        for column in data.columns.values():
            del column[keep:]
        data.epochs = {number_: epoch for number_, epoch in data.epochs.items() if epoch["at_step"] <= step}


def number(value: object) -> float:
    """A number of a record; NaN for null and for what is none."""
    return float(value) if isinstance(value, int | float) else math.nan


def read_run(folder: Path) -> RunData:
    """Everything that a run has written so far.

    Raises:
        UserError: `folder` is no run folder.
    """
    reader = RunReader(folder)
    reader.poll()
    return reader.data


def is_run_folder(folder: Path) -> bool:
    """Whether a run has been here: it writes its settings before all else."""
    return (folder / METRICS_FILE).is_file() or (folder / "config.yaml").is_file()


def run_folder(folder: Path) -> Path:
    """`folder`, if it is one.

    Raises:
        UserError: it is not; the line names the newest run in it, if there is one.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder")
    if not is_run_folder(folder):
        newest = newest_run(folder)
        hint = f"; the newest run in it is {newest}" if newest else ""
        raise UserError(f"{folder}: is no run folder, it has neither config.yaml nor {METRICS_FILE}{hint}")
    return folder


def newest_run(parent: Path) -> Path | None:
    """The run folder in `parent` that was made last, or None."""
    try:
        folders = [path for path in parent.iterdir() if path.is_dir() and is_run_folder(path)]
    except OSError:
        return None
    return max(folders, key=lambda path: (path.stat().st_mtime, path.name), default=None)


def chosen_runs(folders: Sequence[Path], parent: Path = Path("runs")) -> list[Path]:
    """`folders`, or the newest run in `parent` where none is named.

    Raises:
        UserError: one of them is no run folder, or there is none.
    """
    if folders:
        return [run_folder(folder) for folder in dict.fromkeys(folders)]
    newest = newest_run(parent)
    if newest is None:
        raise UserError(f"no run in {parent}: name a run folder")
    return [newest]
