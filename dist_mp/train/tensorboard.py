"""A run's records as TensorBoard event files.

Format: a TFRecord file of `tensorflow.Event` messages that begins with the version (TensorFlow, 'event.proto' and
'summary.proto'). TensorFlow writes both, so that nothing else need be installed.
"""

from __future__ import annotations

import math
import platform
from pathlib import Path

import tensorflow as tf

from dist_mp.train.records import EpochRecord, RanksRecord, Record, StartRecord, StepRecord

FLUSH_SECONDS = 5.0
STEP_TAGS = {
    "train/loss": "loss",
    "train/learning_rate": "learning_rate",
    "train/loss_scale": "loss_scale",
    "train/gradient_norm": "gradient_norm",
    "speed/samples_per_second": "samples_per_second",
    "speed/step_seconds": "seconds",
    "speed/sent_bytes": "sent_bytes",
    "share/compute": "share_compute",
    "share/exchange": "share_exchange",
    "share/wait": "share_wait",
    "share/input": "share_input",
}


class TensorBoardSink:
    """Writes scalars of steps and epochs.

    A run that goes on after a stop begins a new file, which tells TensorBoard from which step on the older ones are
    void.
    """

    def __init__(self, folder: Path) -> None:
        """Write into `folder`, which is made; the file is opened with the start record, which has its moment."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file: tf.io.TFRecordWriter | None = None
        self._flushed = 0.0
        self._step = 0

    def write(self, record: Record) -> None:
        """Add the scalars of `record`; before the first start record nothing is written."""
        if isinstance(record, StartRecord):
            self._open(record)
        elif isinstance(record, StepRecord):
            self._step = record.step
            scalars = {tag: float(getattr(record, name)) for tag, name in STEP_TAGS.items()}
            self._scalars(record.time, record.step, scalars | {"train/applied": float(record.applied)})
        elif isinstance(record, EpochRecord):
            held_out = {f"held_out/{name}": value for name, value in record.metrics.items()}
            self._scalars(record.time, self._step, held_out | {"epoch/train_loss": record.train_loss})
        elif isinstance(record, RanksRecord):
            self._scalars(record.time, record.step, {"speed/slowest_rank_compute_seconds": max(record.compute)})

    def close(self) -> None:
        """Write the rest."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, start: StartRecord) -> None:
        self.close()
        host = platform.node() or "host"
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{start.time:017.6f}.{host}.{start.process}"
        self._file = tf.io.TFRecordWriter(str(self._folder / name))
        self._event(tf.compat.v1.Event(wall_time=start.time, file_version="brain.Event:2"))
        if start.step:
            log = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
            self._event(tf.compat.v1.Event(wall_time=start.time, step=start.step, session_log=log))
        self._file.flush()
        self._flushed = start.time

    def _scalars(self, moment: float, step: int, scalars: dict[str, float]) -> None:
        if self._file is None:
            return
        values = [tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        values = [value for value in values if not math.isnan(value.simple_value)]
        self._event(tf.compat.v1.Event(wall_time=moment, step=step, summary=tf.compat.v1.Summary(value=values)))
        if moment - self._flushed >= FLUSH_SECONDS:
            self._file.flush()
            self._flushed = moment

    def _event(self, event: tf.compat.v1.Event) -> None:
        assert self._file is not None
        self._file.write(event.SerializeToString())
