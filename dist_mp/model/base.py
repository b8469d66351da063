"""What the training step needs of a model: variables, a forward pass with explicit state, and a loss a time step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import keras
import tensorflow as tf

State = list[tf.Tensor]
"""Recurrent state between windows: for each LSTM layer h [B, N] in the compute type and c [B, N] in FP32, for each GRU
layer h [B, N] in FP32."""

Outputs: TypeAlias = Any
"""What a task's forward pass gives to its own losses and scores: a tensor, or a tuple of tensors."""


class Task(ABC):
    """A Keras model with the loss it is trained on.

    Built under one dtype: variables, activations and gradients are of `compute_dtype`; losses, softmax and norm
    layers are float32. Legend of shapes: B rows, T time steps, F features, N cells, V words.
    """

    model: keras.Model
    compute_dtype: tf.DType

    @property
    def variables(self) -> list[tf.Variable]:
        """The trainable variables as TensorFlow variables, in creation order (the order of forward)."""
        return [v.value for v in self.model.trainable_variables]

    @property
    def paths(self) -> list[str]:
        """A unique name for each of `variables`."""
        return [v.path for v in self.model.trainable_variables]

    @property
    def recurrence(self) -> str:
        """What computes the recurrent layers, and why, for the run's header; empty where there are none."""
        stack = getattr(self.model, "stack", None)
        return stack.path if stack is not None else ""

    @abstractmethod
    def initial_state(self, rows: int) -> State:
        """Zero state for so many rows."""

    @abstractmethod
    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[Outputs, State]:
        """Outputs for a window of inputs and the state after it.

        `seed` (int32 [2]) makes dropout a pure function of it; each dropout layer folds in a number of its own.
        `weight` [B, T] is that of the window, from which a model that looks ahead learns where a row ends.
        """

    @abstractmethod
    def losses(self, outputs: Outputs, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Loss a time step, float32 [B, T], not yet weighted; `weight` [B, T] float32 is 0 at padding."""

    def scores(self, outputs: Outputs) -> tf.Tensor:
        """What evaluation looks at, float32 (a predictor's output [B, T]; by default the outputs)."""
        return tf.cast(outputs, tf.float32)


def reset_rows(state: State, reset: Any) -> State:
    """State with the rows zeroed in which `reset` (bool [B]) is true: a new sequence begins there."""
    keep = tf.logical_not(reset)[:, None]
    return [tf.where(keep, s, tf.zeros_like(s)) for s in state]


def valid_steps(weight: tf.Tensor) -> tf.Tensor:
    """Steps of each row up to the last whose `weight` [B, T] is not 0: int32 [B]."""
    steps = tf.range(1, weight.shape[1] + 1)
    return tf.reduce_max(tf.where(weight > 0, steps, 0), axis=1)
