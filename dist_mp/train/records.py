"""What a run writes down: JSON lines in `metrics.jsonl`, one record a line, described in docs/metrics.md."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A line of `metrics.jsonl`; `kind` says which."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StepRecord(Record):
    """One training step. Losses are means over the valid time steps of all ranks."""

    kind: Literal["step"] = "step"
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


class EpochRecord(Record):
    """One epoch with its evaluation."""

    kind: Literal["epoch"] = "epoch"
    epoch: int = Field(description="epochs before this one")
    steps: int = Field(description="steps of this epoch")
    train_loss: float = Field(description="mean training loss over the epoch's valid time steps")
    seconds: float = Field(description="wall time of the epoch's training (s)")
    evaluation_seconds: float = Field(description="wall time of its evaluation (s)")
    metrics: dict[str, float] = Field(description="held-out metrics: loss, and perplexity or auc")


class CheckRecord(Record):
    """The ranks compared their weights and found them equal to the bit."""

    kind: Literal["check"] = "check"
    step: int = Field(description="steps before the comparison")
    weights: str = Field(description="BLAKE2b hash of the weights that are trained, the same on all ranks")


class SummaryRecord(Record):
    """The end of a run; also written to `summary.json`."""

    kind: Literal["summary"] = "summary"
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


class RecordWriter:
    """Appends records to a file, each flushed as a whole line so that a reader sees only whole ones."""

    def __init__(self, path: Path | None) -> None:
        """Open `path` for appending; None (every rank but 0) writes nothing."""
        self._file = path.open("a", encoding="utf-8") if path else None

    def write(self, record: Record) -> None:
        """Append one line; NaN and infinities become null, JSON having no word for them."""
        if self._file:
            self._file.write(record.model_dump_json() + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()
