"""One training step: the way of a gradient from the loss to the weights.

The order is that of Micikevicius et al. (ICLR 2018) and of synchronous data parallelism: mean over the ranks, unscale,
check, clip by the global norm, update the FP32 masters, round once to the working copy. The exchange always runs,
whatever the gradients hold; every rank then looks at the same bits and so takes the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from dist_mp.model.base import State, Task, reset_rows
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights


class GradientExchange(Protocol):
    """What the step needs of an exchange: FP32 means in creation order, and the same numbers as flat buckets."""

    def __call__(self, gradients: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Average over the ranks, inside the graph."""
        ...


class Window(NamedTuple):
    """The rows of one micro-batch as tensors; shapes as in :class:`dist_mp.data.base.Batch`."""

    inputs: tf.Tensor
    targets: tf.Tensor
    weight: tf.Tensor
    reset: tf.Tensor


class StepResult(NamedTuple):
    """What a step leaves behind besides the weights. All scalars are tensors on this rank."""

    loss_sum: tf.Tensor
    """This rank's weighted sum of losses, float32, unscaled."""
    finite: tf.Tensor
    """Whether the update was applied, bool, the same on every rank."""
    gradient_norm: tf.Tensor
    """Global norm of the averaged, unscaled gradient before clipping, float32."""
    state: State


class TrainStep:
    """The training step of one rank, compiled once for the shapes of its windows."""

    def __init__(
        self,
        task: Task,
        masters: MasterWeights,
        loss_scale: LossScale,
        exchange: GradientExchange,
        *,
        num_workers: int,
        clip_norm: float = 0.0,
        l2: float = 0.0,
        accumulate: bool = False,
        loss_known: Callable[[], None] | None = None,
        put: Callable[[Sequence[tf.Tensor]], tf.Operation] | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            task: model and loss.
            masters: FP32 weights and their optimizer.
            loss_scale: factor on the loss and its counters.
            exchange: averages gradients over the ranks.
            num_workers: workers that `exchange` averages over: the ranks, or virtual ones.
            clip_norm: limit on the global norm of the averaged, unscaled gradient, 0 for none.
            l2: coefficient of the penalty l2 * sum(w^2) on the masters.
            accumulate: keep FP32 sums of gradients for :meth:`add`.
            loss_known: called on the host when forward is over and before backward begins, for a timeline.
            put: hands over the gradients of a virtual worker that is not its rank's last, inside the graph.
        """
        self._task = task
        self._masters = masters
        self._loss_scale = loss_scale
        self._exchange = exchange
        self._num_workers = num_workers
        self._clip_norm = clip_norm
        self._l2 = l2
        self._loss_known = loss_known
        self._put = put
        shapes = [v.shape for v in task.variables] if accumulate else []
        self._sums = [tf.Variable(tf.zeros(s, tf.float32), trainable=False) for s in shapes]

    @tf.function
    def add(self, window: Window, state: State, total_weight: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Add a micro-batch's gradient to the sums; returns its loss sum and the state after it."""
        loss_sum, gradients, state = self._backward(window, state, total_weight, seed)
        for total, gradient in zip(self._sums, gradients, strict=True):
            total.assign_add(tf.cast(gradient, tf.float32))
        return loss_sum, state

    @tf.function
    def put(self, window: Window, state: State, total_weight: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Hand a virtual worker's gradient to the exchange, at its last (or only) micro-batch; returns as :meth:`add`.

        For all workers of a rank but the last, whose last micro-batch is :meth:`update`'s.
        """
        if self._put is None:
            raise TypeError("this step has no virtual workers")
        loss_sum, gradients, state = self._backward(window, state, total_weight, seed)
        with tf.control_dependencies([self._put(self._with_sums(gradients))]):
            self._clear_sums()
            return tf.identity(loss_sum), state

    @tf.function
    def update(
        self, window: Window, state: State, total_weight: tf.Tensor, seed: tf.Tensor, learning_rate: tf.Tensor
    ) -> StepResult:
        """Compute the last (or only) micro-batch of a step, exchange, and update the weights.

        Args:
            window: rows of this rank.
            state: recurrent state of these rows.
            total_weight: sum of the weights of the step's windows over all micro-batches and ranks, float32 scalar.
            seed: int32 [2], of dropout.
            learning_rate: float32 scalar.
        """
        # 1. Forward and backward in the compute type, on loss x scale.
        loss_sum, gradients, state = self._backward(window, state, total_weight, seed)
        # 2. Mean over the ranks, always, in FP32 from here on.
        means, buckets = self._exchange(self._with_sums(gradients))
        # 3. The same bits on every rank: are they finite, and how long is the unscaled gradient?
        finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(b)) for b in buckets]))
        inverse = 1.0 / self._loss_scale.scale
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(b * inverse)) for b in buckets]))
        # 4. Unscale, clip by the global norm, update the masters, round once to the working copy; or skip all of it.
        norm = tf.cond(finite, lambda: self._apply(means, inverse, norm, learning_rate), lambda: norm)
        # 5. The next scale.
        self._loss_scale.update(finite)
        self._clear_sums()
        return StepResult(loss_sum, finite, norm, tf.cond(finite, lambda: state, lambda: _finite_rows(state)))

    def _with_sums(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of the last micro-batch plus those of the ones before."""
        if not self._sums:
            return gradients
        return [s + tf.cast(g, tf.float32) for s, g in zip(self._sums, gradients, strict=True)]

    def _clear_sums(self) -> None:
        for total in self._sums:
            total.assign(tf.zeros_like(total))

    def _backward(
        self, window: Window, state: State, total_weight: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], State]:
        # The exchange divides by the workers; times the workers here, the mean is the sum over all valid steps of all
        # workers divided by their number, however unevenly the workers hold them.
        factor = self._loss_scale.scale * (self._num_workers / total_weight)
        variables = self._task.variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            before = reset_rows(state, window.reset)
            outputs, state = self._task.forward(window.inputs, before, training=True, seed=seed, weight=window.weight)
            losses = self._task.losses(outputs, window.targets, window.weight)
            # Padded steps may hold anything: select, since 0 x inf is not 0.
            loss_sum = tf.reduce_sum(tf.where(window.weight > 0, losses * window.weight, 0.0))
            with tf.control_dependencies(self._mark(loss_sum)):
                scaled = loss_sum * factor
        gradients = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss_sum, [tf.convert_to_tensor(g) for g in gradients], state

    def _mark(self, loss_sum: tf.Tensor) -> list[tf.Tensor]:
        """A host call that waits for the loss, where somebody wants to know."""
        if self._loss_known is None:
            return []
        known = self._loss_known

        def call(_: object) -> np.int32:
            known()
            return np.int32(0)

        return [tf.numpy_function(call, [loss_sum], tf.int32)]

    def _apply(
        self, means: list[tf.Tensor], inverse: tf.Tensor, norm: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        gradients = [m * inverse for m in means]
        if self._l2:
            penalty = 2.0 * self._l2
            masters = self._masters.masters
            gradients = [g + penalty * tf.cast(w.value, tf.float32) for g, w in zip(gradients, masters, strict=True)]
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
        if self._clip_norm:
            shrink = self._clip_norm / tf.maximum(norm, self._clip_norm)
            gradients = [g * shrink for g in gradients]
        self._masters.apply(gradients, learning_rate)
        return norm


def _finite_rows(state: State) -> State:
    """State with rows zeroed that hold a number that is not finite, so that one bad input does not stay for good."""
    return [tf.where(tf.reduce_all(tf.math.is_finite(s), axis=-1, keepdims=True), s, tf.zeros_like(s)) for s in state]
