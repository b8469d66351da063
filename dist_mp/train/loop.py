"""The training loop of a rank: batches in, steps, one control word a step, records out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.base import Batch, Dataset
from dist_mp.data.prefetch import Prefetcher
from dist_mp.errors import UserError
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.model.base import State, Task
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.precision.policy import Precision
from dist_mp.schedule import learning_rate
from dist_mp.train.evaluate import Evaluator
from dist_mp.train.fingerprint import weights_hash
from dist_mp.train.progress import ProgressDisplay
from dist_mp.train.rank_times import RankTimes
from dist_mp.train.records import CheckRecord, EpochRecord, RecordWriter, StepRecord, SummaryRecord
from dist_mp.train.step import TrainStep, Window
from dist_mp.train.trace import StepTrace

PREFETCHED_BATCHES = 4


@dataclass
class Parts:
    """Everything that a rank trains with, put together by :mod:`dist_mp.train.assemble`."""

    world: World
    config: Config
    dataset: Dataset
    precision: Precision
    exchange: str
    """Codec, algorithm and buckets in words, for the header."""
    task: Task
    masters: MasterWeights
    loss_scale: LossScale
    allreduce: Allreduce
    step: TrainStep
    evaluator: Evaluator
    trace: StepTrace | None = None
    """Gets the phases of each step where the settings ask for a timeline."""


class _Spent(NamedTuple):
    """Seconds of this rank's last step."""

    total: float = 0.0
    exchange: float = 0.0
    wait: float = 0.0
    input: float = 0.0


class _Word(NamedTuple):
    """What every rank learns of the others once a step, as float64 columns [num_ranks]."""

    next_weight: np.ndarray
    has_next: np.ndarray
    loss_sum: np.ndarray
    total: np.ndarray
    exchange: np.ndarray
    wait: np.ndarray
    input: np.ndarray


class Trainer:
    """Trains and evaluates; all ranks run the same steps in the same order."""

    def __init__(self, parts: Parts, records: RecordWriter, display: ProgressDisplay) -> None:
        """Take the parts of a run; `records` and `display` do nothing on ranks other than 0."""
        self._p = parts
        self._records = records
        self._display = display
        self._rank_times = RankTimes()
        train = parts.config.train
        self._rows = train.batch_size * train.accumulation
        self._global_rows = self._rows * parts.world.size
        self._step_number = 0
        self._sent_bytes = 0
        self._train_seconds = 0.0
        self._rows_seen = 0

    def run(self, run_folder: str, begin: float | None = None) -> SummaryRecord:
        """Train all epochs, evaluate, and return the summary (the same on every rank but for its own byte count).

        `begin` is the start of the run by :func:`time.perf_counter`, if that was before now.
        """
        begin = time.perf_counter() if begin is None else begin
        train = self._p.config.train
        metrics: dict[str, float] = {}
        for epoch in range(train.epochs):
            if self._finished():
                break
            start = time.perf_counter()
            steps, train_loss = self._epoch(epoch)
            trained = time.perf_counter()
            self._train_seconds += trained - start
            last = epoch + 1 == train.epochs or self._finished()
            if last or (epoch + 1) % train.eval_every == 0:
                metrics = self._p.evaluator.run()
                record = EpochRecord(
                    epoch=epoch,
                    steps=steps,
                    train_loss=train_loss,
                    seconds=trained - start,
                    evaluation_seconds=time.perf_counter() - trained,
                    metrics=metrics,
                )
                self._records.write(record)
                self._display.epoch(record)
        return SummaryRecord(
            metrics=metrics,
            applied_steps=int(self._p.loss_scale.applied_steps),
            skipped_steps=int(self._p.loss_scale.skipped_steps),
            loss_scale=float(self._p.loss_scale.scale),
            sent_bytes_per_step=self._sent_bytes / max(self._step_number, 1),
            gradient_numbers=sum(int(np.prod(v.shape)) for v in self._p.task.variables),
            samples_per_second=self._rows_seen / max(self._train_seconds, 1e-9),
            seconds=time.perf_counter() - begin,
            weights=self.check_weights(),
            run_folder=run_folder,
        )

    def check_weights(self) -> str:
        """Compare weights and loss scale of all ranks; returns the weights' hash, or raises where a rank differs."""
        own = weights_hash(self._p.masters.values())
        everyone = self._p.world.allgather((own, float(self._p.loss_scale.scale)))
        different = [rank for rank, other in enumerate(everyone) if other != everyone[0]]
        if different:
            raise RuntimeError(
                f"after step {self._step_number} weights or loss scale of ranks {different} differ from rank 0's: "
                f"{[everyone[rank] for rank in [0, *different]]}"
            )
        self._records.write(CheckRecord(step=self._step_number, weights=own))
        return own

    def _finished(self) -> bool:
        limit = self._p.config.train.max_steps
        return limit is not None and self._step_number >= limit

    def _epoch(self, epoch: int) -> tuple[int, float]:
        """One pass over the training data; returns its steps and its mean loss."""
        p, first_row = self._p, self._p.world.rank * self._rows
        self._display.begin_epoch(epoch, p.dataset.train.steps(epoch, self._global_rows))
        source = p.dataset.train.batches(epoch, self._global_rows, first_row, self._rows)
        states = [p.task.initial_state(p.config.train.batch_size) for _ in range(p.config.train.accumulation)]
        first_step, loss_sum, weight_sum = self._step_number, 0.0, 0.0
        prefetcher = Prefetcher(source, PREFETCHED_BATCHES)
        with prefetcher as batches:
            iterator = iter(batches)
            started = time.perf_counter()
            batch, input_seconds = self._next(iterator)
            word = self._agree(batch, 0.0, _Spent(input=input_seconds))
            while batch is not None:
                weight = float(word.next_weight.sum())
                rate = learning_rate(p.config.schedule, self._step_number, epoch, p.world.size)
                scale = float(p.loss_scale.scale)
                p.world.watchdog.step = self._step_number
                before = p.allreduce.stats.snapshot()
                p.allreduce.loss_scale = scale
                own_loss, applied, norm, states = self._train_on(batch, states, weight, rate)
                p.allreduce.settle(applied)
                spent = p.allreduce.stats.since(before)
                self._step_number += 1
                batch, input_seconds = (None, 0.0) if self._finished() else self._next(iterator)
                now = time.perf_counter()
                mine = _Spent(now - started, spent.exchange_seconds, spent.wait_seconds, input_seconds)
                word = self._agree(batch, own_loss, mine)
                finished = time.perf_counter()
                mean_loss = float(word.loss_sum.sum()) / max(weight, 1.0)
                loss_sum += mean_loss * weight if applied else 0.0
                weight_sum += weight if applied else 0.0
                self._sent_bytes += spent.sent_bytes
                self._rows_seen += self._global_rows
                record = self._record(word, finished - started, weight, spent.sent_bytes)
                record |= {"epoch": epoch, "loss": mean_loss, "learning_rate": rate, "loss_scale": scale}
                step_in_epoch = self._step_number - 1 - first_step
                self._report(StepRecord(**record, applied=applied, gradient_norm=norm), step_in_epoch)
                started = finished
        self._write_rank_times(last=True)
        return self._step_number - first_step, loss_sum / weight_sum if weight_sum else float("nan")

    def _next(self, batches: Iterator[Batch]) -> tuple[Batch | None, float]:
        start = time.perf_counter()
        return next(batches, None), time.perf_counter() - start

    def _agree(self, batch: Batch | None, loss_sum: float, spent: _Spent) -> _Word:
        """Exchange the control word: the only message of a step beside the gradients."""
        weight = 0.0 if batch is None else float(batch.weight.sum(dtype=np.float64))
        own = np.array([weight, float(batch is not None), loss_sum, *spent], dtype=np.float64)
        word = _Word(*self._p.world.agree(own).T.copy())
        if word.has_next.any() != word.has_next.all():
            without = np.flatnonzero(word.has_next == 0).tolist()
            raise RuntimeError(f"ranks {without} have no batch where others have one")
        return word

    def _train_on(
        self, batch: Batch, states: list[State], weight: float, rate: float
    ) -> tuple[float, bool, float, list[State]]:
        """Run one step over the micro-batches of `batch`; returns loss sum, applied, gradient norm and new states."""
        p, size = self._p, self._p.config.train.batch_size
        total_weight = tf.constant(max(weight, 1.0), tf.float32)
        new_states, loss_sum = [], 0.0
        for micro, state in enumerate(states):
            rows = slice(micro * size, (micro + 1) * size)
            window = Window(*(tf.constant(a[rows]) for a in (batch.inputs, batch.targets, batch.weight, batch.reset)))
            seed = self._dropout_seed(micro)
            last = micro + 1 == len(states)
            if p.trace is not None:
                p.trace.begin()
            if not last:
                partial, state = p.step.add(window, state, total_weight, seed)
                loss_sum += float(partial)
            else:
                result = p.step.update(window, state, total_weight, seed, tf.constant(rate, tf.float32))
                loss_sum += float(result.loss_sum)
                state = result.state
            if p.trace is not None:
                p.trace.end(updated=last)
            new_states.append(state)
        return loss_sum, bool(result.finite), float(result.gradient_norm), new_states

    def _dropout_seed(self, micro: int) -> tf.Tensor:
        words = (self._p.config.seed, self._step_number, self._p.world.rank, micro)
        return tf.constant(np.random.SeedSequence(words).generate_state(2).view(np.int32))

    def _record(self, word: _Word, seconds: float, weight: float, sent_bytes: int) -> dict[str, object]:
        # What a rank's step took beyond its own word is time spent waiting for the others' words.
        total = np.maximum(word.total, 1e-9)
        slowest = total.max()
        compute = np.maximum(word.total - word.exchange - word.wait - word.input, 0.0)
        wait = word.wait + (slowest - total)
        self._rank_times.add(compute, word.exchange, wait, word.input)
        return {
            "step": self._step_number - 1,
            "seconds": seconds,
            "samples_per_second": self._global_rows / seconds,
            "steps_per_second": weight / seconds,
            "share_compute": float(compute.mean() / slowest),
            "share_exchange": float(word.exchange.mean() / slowest),
            "share_wait": float(wait.mean() / slowest),
            "share_input": float(word.input.mean() / slowest),
            "rank_compute_seconds": [round(float(c), 6) for c in compute],
            "sent_bytes": sent_bytes,
        }

    def _write_rank_times(self, *, last: bool = False) -> None:
        record = self._rank_times.record(self._step_number, last=last)
        if record is not None:
            self._records.write(record)

    def _report(self, record: StepRecord, step_in_epoch: int) -> None:
        config, scale = self._p.config, self._p.loss_scale
        if record.step % config.train.log_every == 0 or not record.applied:
            self._records.write(record)
        self._write_rank_times()
        self._display.step(record, step_in_epoch)
        every = config.train.check_weights_every
        if every and self._step_number % every == 0:
            self.check_weights()
        skips = 0 if record.applied else int(scale.skips_in_a_row)
        if skips >= scale.max_skips:
            cause = (
                f"the loss scale is at {float(scale.scale):g} and cannot be the cause: look for NaN in the data or a "
                f"learning rate that is too high ({record.learning_rate:g})"
                if scale.at_floor
                else f"the loss scale fell to {float(scale.scale):g} and the gradients still overflow"
            )
            raise UserError(
                f"training: {skips} steps in a row had gradients that are not finite, up to step {record.step}; {cause}"
            )
