"""What a run writes down: JSON lines in `metrics.jsonl`, one record a line, described in docs/metrics.md."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import time as now
from types import TracebackType
from typing import Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field

MOMENT = "moment of the record (s since 1970, UTC)"


class Record(BaseModel):
    """A line of `metrics.jsonl`; `kind` says which."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StartRecord(Record):
    """The run starts, or goes on after a stop: one record for each time that its ranks were started."""

    kind: Literal["start"] = "start"
    time: float = Field(default_factory=now, description=MOMENT)
    step: int = Field(description="steps before the first one of this start; records of later steps are void")
    expected_steps: int = Field(description="steps of the whole run, if all epochs are as long as the first")
    epochs: int = Field(description="epochs of the whole run")
    ranks: int = Field(description="number of ranks")
    hosts: list[str] = Field(description="host of each rank")
    process: int = Field(description="process id of rank 0")
    command: list[str] = Field(description="command line of rank 0")
    folder: str = Field(description="working directory of rank 0")
    run: dict[str, str] = Field(description="what the header of the run says: data, model, precision, exchange, ...")
    software: dict[str, str] = Field(description="versions of dist_mp, Python, TensorFlow, MPI and others on rank 0")
    hardware: dict[str, str] = Field(description="processor, cores, memory and GPUs of rank 0's host")
    variables: dict[str, str] = Field(description="environment variables that steer threads, MPI and GPUs on rank 0")


class StepRecord(Record):
    """One training step. Losses are means over the valid time steps of all ranks."""

    kind: Literal["step"] = "step"
    time: float = Field(default_factory=now, description=MOMENT)
    step: int = Field(description="steps before this one since the start of the run, skipped ones included")
    epoch: int = Field(description="epochs before this one")
    loss: float = Field(description="training loss (nats for language models)")
    learning_rate: float = Field(description="rate of this step")
    loss_scale: float = Field(description="factor on the loss in this step")
    applied: bool = Field(description="false where the averaged gradient was not finite and the update was skipped")
    gradient_norm: float = Field(description="global norm of the averaged, unscaled gradient before clipping")
    seconds: float = Field(description="wall time of the step on rank 0 (s)")
    samples_per_second: float = Field(description="rows of all ranks per second (1/s)")
    steps_per_second: float = Field(description="valid time steps (words) of all ranks per second (1/s)")
    share_compute: float = Field(description="share of the step in forward, backward and update, mean over the ranks")
    share_exchange: float = Field(description="share in encoding, moving, summing and decoding, mean over the ranks")
    share_wait: float = Field(description="share in waiting for other ranks, mean over the ranks")
    share_input: float = Field(description="share in waiting for data, mean over the ranks")
    rank_compute_seconds: list[float] = Field(description="seconds of compute of each rank (s); a straggler has most")
    sent_bytes: int = Field(description="bytes that rank 0 handed to MPI or to shared memory for its peers (B)")


class RanksRecord(Record):
    """Where the time of each rank went, as means over the steps since the last such record."""

    kind: Literal["ranks"] = "ranks"
    time: float = Field(default_factory=now, description=MOMENT)
    step: int = Field(description="steps before this record since the start of the run")
    steps: int = Field(description="steps that the means are over")
    compute: list[float] = Field(description="seconds a step in forward, backward and update, of each rank (s)")
    exchange: list[float] = Field(description="seconds a step in encoding, moving, summing, decoding, of each rank (s)")
    wait: list[float] = Field(description="seconds a step in waiting for other ranks, of each rank (s)")
    input: list[float] = Field(description="seconds a step in waiting for data, of each rank (s)")


class EpochRecord(Record):
    """One epoch with its evaluation."""

    kind: Literal["epoch"] = "epoch"
    time: float = Field(default_factory=now, description=MOMENT)
    epoch: int = Field(description="epochs before this one")
    steps: int = Field(description="steps of this epoch")
    train_loss: float = Field(description="mean training loss over the epoch's valid time steps")
    seconds: float = Field(description="wall time of the epoch's training (s)")
    evaluation_seconds: float = Field(description="wall time of its evaluation (s)")
    metrics: dict[str, float] = Field(description="held-out metrics: loss, and perplexity or auc")


class StopRecord(Record):
    """A signal stopped the run; its state is saved."""

    kind: Literal["stop"] = "stop"
    time: float = Field(default_factory=now, description=MOMENT)
    signal: str = Field(description="name of the signal")


class CheckRecord(Record):
    """The ranks compared their weights and found them equal to the bit."""

    kind: Literal["check"] = "check"
    step: int = Field(description="steps before the comparison")
    weights: str = Field(description="BLAKE2b hash of the weights that are trained, the same on all ranks")


class SummaryRecord(Record):
    """The end of a run; also written to `summary.json`."""

    kind: Literal["summary"] = "summary"
    time: float = Field(default_factory=now, description=MOMENT)
    metrics: dict[str, float] = Field(description="held-out metrics of the last evaluation")
    applied_steps: int = Field(description="steps whose update was applied")
    skipped_steps: int = Field(description="steps whose gradient was not finite")
    loss_scale: float = Field(description="factor on the loss at the end")
    sent_bytes_per_step: float = Field(description="bytes that rank 0 sent a step, mean (B)")
    gradient_numbers: int = Field(description="numbers in the gradient")
    samples_per_second: float = Field(description="rows of all ranks per second of training (1/s)")
    seconds: float = Field(description="wall time of the run, evaluation included (s)")
    weights: str = Field(description="BLAKE2b hash of the final weights, the same on all ranks")
    run_folder: str = Field(description="where the run's files are")


class RecordSink(Protocol):
    """Gets every record of a run too: event files, metrics of a service."""

    def write(self, record: Record) -> None:
        """Take a record."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class RecordWriter:
    """Appends records to a file, each flushed as a whole line so that a reader sees only whole ones."""

    def __init__(self, path: Path | None, sinks: Sequence[RecordSink] = ()) -> None:
        """Open `path` for appending; None (every rank but 0) writes nothing. `sinks` get each record after it."""
        self._file = None if path is None else path.open("a", encoding="utf-8")
        if path is not None and self._file and _ends_within_line(path):
            # A crash cut the last record off; the next one shall not be lost with it.
            self._file.write("\n")
        self._sinks = sinks

    def write(self, record: Record) -> None:
        """Append one line; NaN and infinities become null, JSON having no word for them."""
        if self._file:
            self._file.write(record.model_dump_json() + "\n")
            self._file.flush()
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        """Close the file and the sinks."""
        if self._file:
            self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


def _ends_within_line(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
