"""What can be said of a run at this moment: whether it lives, how far it is, how fast, and which ranks hold it up."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import psutil

from dist_mp.experiments.run_reader import PARTS, RunData, number

RECENT_STEPS = 20
SILENT_SECONDS = 60.0
"""A run is silent after so long without a record, or after SILENT_STEPS steps if that is longer."""
SILENT_STEPS = 20
STRAGGLER_FACTOR = 1.15
"""A rank whose own work takes so many times the median of all ranks' is a straggler."""
State = Literal["not begun", "starting", "running", "silent", "stopped", "died", "ended"]


@dataclass(frozen=True)
class RankTime:
    """Where the time of one rank goes (s a step)."""

    rank: int
    host: str
    compute: float
    exchange: float
    wait: float
    input: float
    excess: float
    """Own work (compute and input) over the median of all ranks', minus 1."""

    @property
    def straggles(self) -> bool:
        """Whether others wait for it."""
        return self.excess > STRAGGLER_FACTOR - 1

    def shares(self) -> dict[str, float]:
        """Share of each part in this rank's step, 0 to 1."""
        total = self.compute + self.exchange + self.wait + self.input
        return {part: getattr(self, part) / total if total > 0 else 0.0 for part in PARTS}


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    name: str
    state: State
    explanation: str
    """The state in words."""
    ranks: int
    step: int
    """Steps that are done."""
    expected_steps: int | None
    epoch: int
    """Epochs that are done or begun."""
    epochs: int | None
    loss: float
    """Mean of the last RECENT_STEPS records, those that were skipped left out."""
    learning_rate: float
    loss_scale: float
    gradient_norm: float
    skipped: int
    restarts: int
    samples_per_second: float
    """Over the last RECENT_STEPS records."""
    step_seconds: float
    sent_bytes: float
    shares: dict[str, float]
    """Shares of a step, means over the ranks and the last RECENT_STEPS records, 0 to 1."""
    remaining_seconds: float | None
    """Until the last step, at the speed of now; None where the run does not go on, or its length is unknown."""
    held_out: dict[str, float]
    """Metrics of the last evaluation."""
    rank_times: list[RankTime]
    """Of the newest record; empty before the first."""

    @property
    def stragglers(self) -> list[RankTime]:
        """Ranks that hold the others up, the slowest first."""
        return sorted((r for r in self.rank_times if r.straggles), key=lambda r: -r.excess)

    @property
    def lives(self) -> bool:
        """Whether there may be more to come."""
        return self.state in ("not begun", "starting", "running", "silent")


def snapshot(data: RunData, now: float | None = None) -> Snapshot:
    """What a run's records say at the moment `now` (s since 1970; default: this one)."""
    now = time.time() if now is None else now
    recent = {name: np.array(column[-RECENT_STEPS:], dtype=np.float64) for name, column in data.columns.items()}
    step = int(data.columns["step"][-1]) + 1 if len(data) else int(number(data.start.get("step", 0)))
    state, explanation = _state(data, recent["seconds"], now)
    expected = _whole(data.start.get("expected_steps"))
    seconds = _mean(recent["seconds"])
    remaining = None
    if state == "running" and expected is not None and math.isfinite(seconds):
        remaining = max(expected - step, 0) * seconds
    applied = recent["applied"] != 0
    held_out = data.epochs[max(data.epochs)]["metrics"] if data.epochs else {}
    epoch = _last(recent["epoch"])
    return Snapshot(
        name=data.name,
        state=state,
        explanation=explanation,
        ranks=_whole(data.start.get("ranks")) or data.last_ranks.shape[1],
        step=step,
        expected_steps=expected,
        epoch=int(epoch) + 1 if math.isfinite(epoch) else 0,
        epochs=_whole(data.start.get("epochs")),
        loss=_mean(recent["loss"][applied]),
        learning_rate=_last(recent["learning_rate"]),
        loss_scale=_last(recent["loss_scale"]),
        gradient_norm=_last(recent["gradient_norm"]),
        skipped=data.columns["applied"].count(0.0),
        restarts=max(len(data.starts) - 1, 0),
        samples_per_second=_rate(recent["samples_per_second"], recent["seconds"]),
        step_seconds=seconds,
        sent_bytes=_last(recent["sent_bytes"]),
        shares={part: _mean(recent[f"share_{part}"]) for part in PARTS},
        remaining_seconds=remaining,
        held_out=held_out,
        rank_times=rank_times(data.last_ranks, data.start.get("hosts")),
    )


def rank_times(seconds: np.ndarray, hosts: object) -> list[RankTime]:
    """The rows of `seconds` [4, ranks] (s a step, in the order of PARTS) as one entry a rank."""
    names = [str(host) for host in hosts] if isinstance(hosts, list) else []
    own = seconds[PARTS.index("compute")] + seconds[PARTS.index("input")]
    median = float(np.median(own)) if own.size else 0.0
    return [
        RankTime(
            rank=rank,
            host=names[rank] if rank < len(names) else "",
            **{part: float(value) for part, value in zip(PARTS, seconds[:, rank], strict=True)},
            excess=float(own[rank]) / median - 1 if median > 0 else 0.0,
        )
        for rank in range(seconds.shape[1])
    ]


def _state(data: RunData, seconds: np.ndarray, now: float) -> tuple[State, str]:
    if data.summary is not None:
        return "ended", f"ended after {duration(number(data.summary.get('seconds')))}"
    if data.stopped_by:
        return "stopped", f"stopped by {data.stopped_by}; its state is saved, --resume goes on"
    if data.last_time is None:
        if not len(data):
            return "not begun", "has not begun: no records yet"
        return "silent", "no summary, and its records do not say when they were written"
    age = max(now - data.last_time, 0.0)
    again = f", started {len(data.starts)} times" if len(data.starts) > 1 else ""
    if _process_gone(data):
        return "died", f"died: its process is gone, the last record is {duration(age)} old{again}"
    limit = max(SILENT_SECONDS, SILENT_STEPS * (_mean(seconds) if seconds.size else 0.0))
    if age > limit:
        return "silent", f"no record for {duration(age)}: it waits, evaluates, or died{again}"
    if not len(data) or data.columns["time"][-1] < number(data.start.get("time")):
        return "starting", f"started {duration(age)} ago, compiles its first step{again}"
    return "running", f"running, the last record is {duration(age)} old{again}"


def _process_gone(data: RunData) -> bool:
    """Whether rank 0 ran on this host and is not there any more; False where that cannot be known."""
    hosts, process = data.start.get("hosts"), data.start.get("process")
    if not isinstance(hosts, list) or not hosts or hosts[0] != platform.node() or not isinstance(process, int):
        return False
    try:
        # Its number may belong to a younger process by now.
        return psutil.Process(process).create_time() > number(data.start.get("time")) + 1
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def duration(seconds: float) -> str:
    """A time in words that suit its size: ``8.5 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if not math.isfinite(seconds):
        return "unknown time"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def _last(values: np.ndarray) -> float:
    return float(values[-1]) if values.size else math.nan


def _rate(rate: np.ndarray, seconds: np.ndarray) -> float:
    """Mean rate over a time: what was done by the time it took."""
    good = np.isfinite(rate) & np.isfinite(seconds)
    total = float(seconds[good].sum())
    return float((rate[good] * seconds[good]).sum()) / total if total > 0 else math.nan


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
