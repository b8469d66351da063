"""The training loop of a rank: batches in, steps, one control word a step, records and checkpoints out."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from dist_mp.data.base import Batch
from dist_mp.data.prefetch import Prefetcher
from dist_mp.model.base import State
from dist_mp.schedule import learning_rate
from dist_mp.train.best import best_after, metric_name
from dist_mp.train.checkpoint import Checkpointer
from dist_mp.train.fingerprint import weights_hash
from dist_mp.train.parts import Parts as Parts
from dist_mp.train.progress import ProgressDisplay
from dist_mp.train.rank_times import RankTimes
from dist_mp.train.records import CheckRecord, EpochRecord, RecordWriter, StepRecord, SummaryRecord
from dist_mp.train.skips import check_skips
from dist_mp.train.state import Position, capture, rest_of_epoch
from dist_mp.train.step import Window
from dist_mp.train.stopping import Stopped, StopRequest
from dist_mp.train.word import Flags, Spent, Word, exchange_words, rank_seconds, shares

PREFETCHED_BATCHES = 4


class Trainer:
    """Trains and evaluates; all ranks run the same steps in the same order."""

    def __init__(
        self,
        parts: Parts,
        records: RecordWriter,
        display: ProgressDisplay,
        *,
        checkpointer: Checkpointer | None = None,
        stop: StopRequest | None = None,
        start: Position | None = None,
        states: list[State] | None = None,
    ) -> None:
        """Take the parts of a run; `records` and `display` do nothing on ranks other than 0.

        Args:
            parts: what to train with, all ranks in the same state.
            records: gets the metrics.
            display: shows progress.
            checkpointer: writes checkpoints; None for none.
            stop: says whether a signal asked the run to stop.
            start: where a resumed run goes on.
            states: recurrent state of each micro-batch there.
        """
        self._p, self._records, self._display = parts, records, display
        self._rank_times = RankTimes()
        self._checkpointer, self._stop = checkpointer, stop or StopRequest()
        self._at = start or Position()
        self._states = states or []
        self._first_step = self._at.step
        self._saved = (self._at.step, self._at.epoch) if start else None
        if checkpointer is not None and self._at.metrics:
            checkpointer.metric = metric_name(parts.config.train.metric, self._at.metrics)
        self._sent_bytes = 0
        self._train_seconds = 0.0
        self.stopped_by = 0
        """The signal that ended the run before its time, 0 for none."""

    def run(self, run_folder: str, begin: float | None = None) -> SummaryRecord | None:
        """Train all epochs, evaluate, and return the summary (the same on every rank but for its own byte count).

        `begin` is the start of the run by :func:`time.perf_counter`, if that was before now. If a signal asked the run
        to stop, its state is saved and there is no summary.

        Raises:
            UserError: the last checkpoint cannot be written, among others.
        """
        begin = time.perf_counter() if begin is None else begin
        p, at = self._p, self._at
        while at.epoch < p.config.train.epochs and not self._out_of_patience():
            if self._finished() and not at.cursor:
                break
            start = time.perf_counter()
            over = self._epoch()
            trained = time.perf_counter()
            self._train_seconds += trained - start
            if self.stopped_by or not self._evaluate(trained - start, over):
                self._save()
                return None
            if not over:
                break
        if self._checkpointer is not None:
            self._checkpointer.finish()
        steps = max(at.step - self._first_step, 1)
        return SummaryRecord(
            metrics=at.metrics,
            applied_steps=int(p.loss_scale.applied_steps),
            skipped_steps=int(p.loss_scale.skipped_steps),
            loss_scale=float(p.loss_scale.scale),
            sent_bytes_per_step=self._sent_bytes / steps,
            gradient_numbers=sum(int(np.prod(v.shape)) for v in p.task.variables),
            samples_per_second=(at.step - self._first_step) * p.global_rows / max(self._train_seconds, 1e-9),
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
                f"after step {self._at.step} weights or loss scale of ranks {different} differ from rank 0's: "
                f"{[everyone[rank] for rank in [0, *different]]}"
            )
        self._records.write(CheckRecord(step=self._at.step, weights=own))
        return own

    def _finished(self) -> bool:
        limit = self._p.config.train.max_steps
        return limit is not None and self._at.step >= limit

    def _out_of_patience(self) -> bool:
        patience = self._p.config.train.patience
        return patience is not None and self._at.best.waited >= patience

    @property
    def ended_early(self) -> str:
        """Why the run ended before its last epoch, if its patience was at an end; else empty."""
        at = self._at
        if at.epoch >= self._p.config.train.epochs or not self._out_of_patience():
            return ""
        return f"stopped early: train.patience is over, epoch {at.best.epoch + 1} was the best with {at.best.value:g}"

    def _evaluate(self, seconds: float, over: bool) -> bool:
        """What follows the training of an epoch; false where a signal came during the evaluation.

        An epoch that the step limit cut short is saved before it is evaluated: resumed with a higher limit, the run
        goes on as if it had not been cut.
        """
        p, at, train = self._p, self._at, self._p.config.train
        if not over:
            self._save(wait=False)
        last = at.epoch + 1 == train.epochs or self._finished()
        metric, best = None, at.best
        if last or (at.epoch + 1) % train.eval_every == 0:
            start = time.perf_counter()
            try:
                p.evaluator.before_window = self._check_stop
                metrics = p.evaluator.run()
            except Stopped:
                return False
            finally:
                p.evaluator.before_window = lambda: None
            record = EpochRecord(
                epoch=at.epoch,
                steps=at.steps_in_epoch,
                train_loss=at.loss_sum / at.weight_sum if at.weight_sum else float("nan"),
                seconds=seconds,
                evaluation_seconds=time.perf_counter() - start,
                metrics=metrics,
            )
            self._records.write(record)
            self._display.epoch(record)
            name = metric_name(train.metric, metrics)
            at.metrics, metric = metrics, metrics[name]
            at.best = best_after(best, name, metric, at.epoch)
            if self._checkpointer is not None:
                self._checkpointer.metric = name
        if over:
            at.epoch, at.cursor, at.loss_sum, at.weight_sum = at.epoch + 1, [], 0.0, 0.0
            better = metric is not None and at.best is not best and at.best.waited == 0
            last = last or self._out_of_patience()
            if self._checkpointer is not None and (last or self._checkpointer.by_epoch(at.epoch, better=better)):
                self._save(metric, wait=False)
        return True

    def _check_stop(self) -> None:
        """Raise on all ranks where a signal asked any of them to stop; collective."""
        self.stopped_by = int(self._p.world.agree(np.array([float(self._stop.number)])).max())
        if self.stopped_by:
            raise Stopped

    def _save(self, metric: float | None = None, *, wait: bool = True) -> None:
        """Copy the state for a checkpoint, which is written in the background unless this is to `wait` for it."""
        p, at = self._p, self._at
        if self._checkpointer is None:
            return
        if self._saved == (at.step, at.epoch):
            if wait:
                self._checkpointer.finish()
            return
        self._saved = at.step, at.epoch
        self._checkpointer.save(capture(p, at, self._states if at.cursor else [], metric))
        if wait:
            self._checkpointer.finish()

    def _epoch(self) -> bool:
        """Train what is left of this epoch, or until something stops it; returns whether the epoch is over."""
        p, at, config = self._p, self._at, self._p.config
        if not self._states or not at.cursor:
            self._states = [p.task.initial_state(config.train.batch_size) for _ in range(p.micros)]
        split, first = rest_of_epoch(p, at)
        if split is None:
            return True
        steps = split.steps(at.epoch, p.global_rows)
        before_this = at.steps_in_epoch - first
        self._display.begin_epoch(at.epoch, before_this + steps)
        source = split.batches(at.epoch, p.global_rows, p.world.rank * p.rows, p.rows, first)
        prefetcher = Prefetcher(source, PREFETCHED_BATCHES)
        with prefetcher as batches:
            iterator = iter(batches)
            started = time.perf_counter()
            batch, input_seconds = (None, 0.0) if self._finished() else self._next(iterator)
            word = self._agree(batch, 0.0, Spent(input=input_seconds))
            while batch is not None and not self.stopped_by:
                weight = float(word.next_weight.sum())
                rate = learning_rate(config.schedule, at.step, at.epoch, p.num_workers)
                scale = float(p.loss_scale.scale)
                p.world.watchdog.step = at.step
                before = p.allreduce.stats.snapshot()
                p.allreduce.loss_scale, p.allreduce.step = scale, at.step
                own_loss, applied, norm, self._states = self._train_on(batch, self._states, weight, rate)
                p.allreduce.settle(applied)
                spent = p.allreduce.stats.since(before)
                at.step += 1
                at.cursor[-1] = (p.global_rows, at.cursor[-1][1] + 1)
                batch, input_seconds = (None, 0.0) if self._finished() else self._next(iterator)
                now = time.perf_counter()
                mine = Spent(now - started, spent.exchange_seconds, spent.wait_seconds, input_seconds)
                word = self._agree(batch, own_loss, mine)
                finished = time.perf_counter()
                mean_loss = float(word.loss_sum.sum()) / max(weight, 1.0)
                at.loss_sum += mean_loss * weight if applied else 0.0
                at.weight_sum += weight if applied else 0.0
                self._sent_bytes += spent.sent_bytes
                self._rank_times.add(*rank_seconds(word))
                self._report(
                    StepRecord(
                        step=at.step - 1,
                        epoch=at.epoch,
                        loss=mean_loss,
                        learning_rate=rate,
                        loss_scale=scale,
                        applied=applied,
                        gradient_norm=norm,
                        seconds=finished - started,
                        samples_per_second=p.global_rows / (finished - started),
                        steps_per_second=weight / (finished - started),
                        sent_bytes=spent.sent_bytes,
                        **shares(word),
                    )
                )
                started = finished
                self._save_when_due(word, more=batch is not None)
        self._write_rank_times(last=True)
        return at.cursor[-1][1] >= steps

    def _save_when_due(self, word: Word, more: bool) -> None:
        """At the end of a step: complete the checkpoint under way, begin one in the middle of an epoch."""
        if self._checkpointer is not None:
            if word.written.all():
                self._checkpointer.settle()
            if more and not self.stopped_by and (word.due.any() or self._checkpointer.by_step(self._at.step)):
                self._save(wait=False)

    def _next(self, batches: Iterator[Batch]) -> tuple[Batch | None, float]:
        start = time.perf_counter()
        return next(batches, None), time.perf_counter() - start

    def _agree(self, batch: Batch | None, loss_sum: float, spent: Spent) -> Word:
        """Exchange the control word, and note from it whether a signal asked any rank to stop."""
        saver = self._checkpointer
        flags = Flags(self._stop.number, saver is not None and saver.by_time, saver is not None and saver.written)
        word = exchange_words(self._p.world, batch, loss_sum, spent, flags)
        self.stopped_by = int(word.stop.max())
        return word

    def _train_on(
        self, batch: Batch, states: list[State], weight: float, rate: float
    ) -> tuple[float, bool, float, list[State]]:
        """Run one step over the micro-batches of `batch`; returns loss sum, applied, gradient norm and new states."""
        p, size, accumulation = self._p, self._p.config.train.batch_size, self._p.config.train.accumulation
        total_weight = tf.constant(max(weight, 1.0), tf.float32)
        new_states, loss_sum = [], 0.0
        for micro, state in enumerate(states):
            rows = slice(micro * size, (micro + 1) * size)
            window = Window(*(tf.constant(a[rows]) for a in (batch.inputs, batch.targets, batch.weight, batch.reset)))
            worker, of_worker = divmod(micro, accumulation)
            seed = self._dropout_seed(worker, of_worker)
            last = micro + 1 == len(states)
            if p.trace is not None:
                p.trace.begin()
            if not last:
                call = p.step.add if of_worker + 1 < accumulation else p.step.put
                partial, state = call(window, state, total_weight, seed)
                loss_sum += float(partial)
            else:
                result = p.step.update(window, state, total_weight, seed, tf.constant(rate, tf.float32))
                loss_sum += float(result.loss_sum)
                state = result.state
            if p.trace is not None:
                p.trace.end(updated=last)
            new_states.append(state)
        return loss_sum, bool(result.finite), float(result.gradient_norm), new_states

    def _dropout_seed(self, worker: int, micro: int) -> tf.Tensor:
        words = (self._p.config.seed, self._at.step, self._p.world.rank * self._p.workers + worker, micro)
        return tf.constant(np.random.SeedSequence(words).generate_state(2).view(np.int32))

    def _write_rank_times(self, *, last: bool = False) -> None:
        record = self._rank_times.record(self._at.step, last=last)
        if record is not None:
            self._records.write(record)

    def _report(self, record: StepRecord) -> None:
        config = self._p.config
        if record.step % config.train.log_every == 0 or not record.applied:
            self._records.write(record)
        self._write_rank_times()
        self._display.step(record, self._at.steps_in_epoch - 1)
        every = config.train.check_weights_every
        if every and self._at.step % every == 0:
            self.check_weights()
        check_skips(self._p.loss_scale, record)
