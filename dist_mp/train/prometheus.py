"""A run's newest values as a file for the textfile collector of Prometheus's node exporter.

Format: Prometheus, 'Exposition formats', text-based format 0.0.4. The collector asks for names that end in ``.prom``
and files that are replaced whole.
"""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path

from dist_mp.comm.world import World
from dist_mp.config import WatchConfig
from dist_mp.errors import UserError
from dist_mp.train.records import EpochRecord, RanksRecord, Record, StartRecord, StepRecord, StopRecord, SummaryRecord

LOG = logging.getLogger(__name__)
INTERVAL_SECONDS = 5.0
STEP_METRICS = {
    "loss": ("loss", "Training loss of the last step."),
    "learning_rate": ("learning_rate", "Learning rate of the last step."),
    "loss_scale": ("loss_scale", "Factor on the loss in the last step."),
    "gradient_norm": ("gradient_norm", "Global norm of the last averaged, unscaled gradient."),
    "samples_per_second": ("samples_per_second", "Rows of all ranks per second in the last step."),
    "step_seconds": ("seconds", "Wall time of the last step on rank 0."),
    "sent_bytes": ("sent_bytes", "Bytes that rank 0 sent in the last step."),
    "share_compute": ("share_compute", "Share of the last step in compute, mean over the ranks."),
    "share_exchange": ("share_exchange", "Share of the last step in the exchange, mean over the ranks."),
    "share_wait": ("share_wait", "Share of the last step in waiting for other ranks, mean over the ranks."),
    "share_input": ("share_input", "Share of the last step in waiting for data, mean over the ranks."),
}
RANK_METRICS = ("compute", "exchange", "wait", "input")
Sample = tuple[dict[str, str], float]


def prometheus_path(setting: str, run: str) -> Path:
    """The file that ``watch.prometheus`` names: itself, or one named after the run where it is a folder.

    Raises:
        UserError: the name does not end in ``.prom``, or its folder is missing or cannot be written.
    """
    path = Path(setting)
    if path.is_dir():
        path = path / f"dist_mp_{run}.prom"
    if path.suffix != ".prom":
        raise UserError(f"watch.prometheus {setting}: must be a folder that exists, or a file whose name ends in .prom")
    if not path.parent.is_dir():
        raise UserError(f"watch.prometheus {setting}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"watch.prometheus {setting}: cannot write into {path.parent}")
    return path


def check_watch(world: World, watch: WatchConfig, run: str) -> None:
    """Raise a UserError on all ranks where rank 0 cannot write what `watch` names. Collective."""
    problem = ""
    if world.rank == 0 and watch.prometheus:
        try:
            prometheus_path(watch.prometheus, run)
        except UserError as error:
            problem = str(error)
    problem = world.broadcast(problem)
    if problem:
        raise UserError(problem)


class PrometheusSink:
    """Replaces its file each few seconds, and at the end; the file stays, and says that the run has ended."""

    def __init__(self, path: Path, run: str, interval_seconds: float = INTERVAL_SECONDS) -> None:
        """Write `path`; `run` becomes the label of every sample."""
        self._path = path
        self._run = run
        self._interval = interval_seconds
        self._written = -math.inf
        self._failed = False
        self._metrics: dict[str, tuple[str, str, list[Sample]]] = {}
        """Name to kind, help and samples."""
        self._skipped = 0

    def write(self, record: Record) -> None:
        """Keep the newest values; write them if it is time."""
        if isinstance(record, StartRecord):
            self._gauge("ranks", "Number of ranks.", record.ranks)
            self._gauge("expected_steps", "Steps of the whole run, if all epochs are alike.", record.expected_steps)
            self._gauge("start_time_seconds", "Moment of the last start.", record.time)
            self._gauge("running", "1 until the run has ended.", 1)
            self._flush()
        elif isinstance(record, StepRecord):
            self._step(record)
            if time.monotonic() - self._written >= self._interval:
                self._flush()
        elif isinstance(record, RanksRecord):
            for name in RANK_METRICS:
                samples: list[Sample] = [({"rank": str(r)}, v) for r, v in enumerate(getattr(record, name))]
                help_ = f"Seconds a step in {name}, of each rank."
                self._metrics[f"rank_{name}_seconds"] = ("gauge", help_, samples)
        elif isinstance(record, EpochRecord):
            self._gauge("epochs_total", "Epochs that are done.", record.epoch + 1, kind="counter")
            self._held_out(record.metrics)
            self._flush()
        elif isinstance(record, SummaryRecord | StopRecord):
            if isinstance(record, SummaryRecord):
                self._held_out(record.metrics)
            self._gauge("running", "1 until the run has ended.", 0)
            self._flush()

    def close(self) -> None:
        """Write the newest values."""
        self._flush()

    def _step(self, record: StepRecord) -> None:
        self._skipped += not record.applied
        self._gauge("steps_total", "Steps that are done.", record.step + 1, kind="counter")
        self._gauge("skipped_steps_total", "Steps skipped since the last start.", self._skipped, kind="counter")
        self._gauge("last_step_time_seconds", "Moment of the last step.", record.time)
        for name, (field, help_) in STEP_METRICS.items():
            self._gauge(name, help_, getattr(record, field))

    def _held_out(self, metrics: dict[str, float]) -> None:
        samples: list[Sample] = [({"metric": name}, value) for name, value in metrics.items()]
        self._metrics["held_out"] = ("gauge", "Held-out metrics of the last evaluation.", samples)

    def _gauge(self, name: str, help_: str, value: float, kind: str = "gauge") -> None:
        self._metrics[name] = (kind, help_, [({}, float(value))])

    def _flush(self) -> None:
        self._written = time.monotonic()
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            partial.write_text(self.text(), encoding="utf-8")
            partial.chmod(0o644)
            os.replace(partial, self._path)
        except OSError as error:
            if not self._failed:
                LOG.warning("%s cannot be written (%s); the run goes on without it", self._path, error.strerror)
            self._failed = True
            partial.unlink(missing_ok=True)

    def text(self) -> str:
        """All metrics in the text format."""
        lines = []
        for name, (kind, help_, samples) in self._metrics.items():
            lines += [f"# HELP dist_mp_{name} {help_}", f"# TYPE dist_mp_{name} {kind}"]
            for labels, value in samples:
                pairs = ",".join(f'{key}="{escape(text)}"' for key, text in ({"run": self._run} | labels).items())
                lines.append(f"dist_mp_{name}{{{pairs}}} {number(value)}")
        return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """A label's value between its quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """A value as the format has it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
