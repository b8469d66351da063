"""What a person sees of a run: a header, a progress bar or plain lines, and the summary. Rank 0 only."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from dist_mp.config import WatchConfig
from dist_mp.train.records import EpochRecord, StepRecord, SummaryRecord

LOG = logging.getLogger(__name__)
SMOOTHED_STEPS = 20


def make_console() -> Console:
    """A console on standard error.

    Under mpirun the ranks write into pipes: the launcher, which sees the terminal, passes its width on in
    DIST_MP_TERMINAL_COLUMNS.
    """
    columns = os.environ.get("DIST_MP_TERMINAL_COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return Console(stderr=True, force_terminal=True, width=int(columns))
    return Console(stderr=True)


class ProgressDisplay:
    """Shows the steps of a run as they happen: a live bar on a terminal, plain lines elsewhere.

    The plain lines go to rank 0's log file in any case.
    """

    def __init__(self, console: Console | None, epochs: int, watch: WatchConfig | None = None) -> None:
        """Show nothing where `console` is None (every rank but 0); `watch` says how often there is a line."""
        self._console = console
        self._epochs = epochs
        self._watch = watch or WatchConfig()
        self._steps = 0
        self._recent: deque[StepRecord] = deque(maxlen=SMOOTHED_STEPS)
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if console and console.is_terminal:
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        """Start the live display."""
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("train", total=None, epoch=f"1/{self._epochs}", text="compiling the step")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the live display."""
        if self._bar:
            self._bar.stop()

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Start an epoch of so many steps."""
        self._steps = steps
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=0, total=steps, epoch=f"{epoch + 1}/{self._epochs}")

    def step(self, record: StepRecord, step_in_epoch: int) -> None:
        """Show a finished step."""
        if self._console is None:
            return
        self._recent.append(record)
        bar = self._bar
        if bar and self._task is not None:
            bar.update(self._task, completed=step_in_epoch + 1, text=self._text(record))
        every = self._watch.line_steps
        due = every is not None and (record.step + 1) % every == 0
        if due or time.monotonic() - self._last_line >= self._watch.line_seconds:
            self._last_line = time.monotonic()
            place = f"epoch {record.epoch + 1}/{self._epochs} step {step_in_epoch + 1}/{self._steps}"
            say(None if bar else self._console, f"{place} {self._text(record)}")

    def epoch(self, record: EpochRecord) -> None:
        """Show a finished epoch and its evaluation."""
        if self._console is None:
            return
        held_out = ", ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
        say(
            self._console,
            f"epoch {record.epoch + 1}/{self._epochs}: train loss {record.train_loss:.4f}; held out: {held_out}; "
            f"{record.seconds:.1f} s + {record.evaluation_seconds:.1f} s evaluation",
        )

    def _text(self, record: StepRecord) -> str:
        recent = list(self._recent)
        rate = sum(r.samples_per_second * r.seconds for r in recent) / max(sum(r.seconds for r in recent), 1e-9)
        compute, exchange, wait, input_ = (
            100.0 * sum(getattr(r, name) for r in recent) / len(recent)
            for name in ("share_compute", "share_exchange", "share_wait", "share_input")
        )
        skipped = "" if record.applied else " skipped"
        return (
            f"loss {record.loss:.4f} lr {record.learning_rate:.3g} scale {record.loss_scale:g}{skipped} "
            f"{rate:,.{0 if rate >= 10 else 2}f} samples/s  "
            f"compute {compute:.0f}% exchange {exchange:.0f}% wait {wait:.0f}% input {input_:.0f}%"
        )


def say(console: Console | None, line: str) -> None:
    """Put a line into the log and, where there is one, on the console."""
    LOG.info("%s", line)
    if console:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_header(console: Console | None, facts: dict[str, str]) -> None:
    """Print what the run is, a fact a line."""
    if console:
        width = max(map(len, facts))
        for name, value in facts.items():
            say(console, f"{name:<{width}}  {value}")


def print_summary(console: Console | None, summary: SummaryRecord) -> None:
    """Print what a run came to, a fact a line."""
    if console is None:
        return
    sent = f"{summary.sent_bytes_per_step:,.0f} bytes for {summary.gradient_numbers:,} gradients"
    facts = {_metric(name): f"{value:.4f}" for name, value in summary.metrics.items()} | {
        "steps": f"{summary.applied_steps} applied, {summary.skipped_steps} skipped",
        "loss scale": f"{summary.loss_scale:g}",
        "sent a step": sent,
        "throughput": f"{summary.samples_per_second:,.0f} samples/s",
        "time": f"{summary.seconds:.1f} s",
        "weights": summary.weights,
        "run folder": summary.run_folder,
    }
    say(console, "summary")
    print_header(console, {f"  {name}": value for name, value in facts.items()})


def _metric(name: str) -> str:
    return f"test {name.removeprefix('test_')}" if name.startswith("test_") else f"held-out {name}"
