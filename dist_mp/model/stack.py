"""Stacked LSTM layers with dropout and explicit state, time-major: what the models have in common."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from dist_mp.model.base import State
from dist_mp.model.lstm import LSTM
from dist_mp.model.ops import stateless_dropout
from dist_mp.model.time_loop import exact_dtype

MakeInitializer = Callable[[str], keras.Initializer]


class LSTMStack(keras.layers.Layer):
    """L LSTM layers of N cells, with dropout on the input of each and on the output (Zaremba et al. 2014)."""

    def __init__(
        self,
        layers: int,
        units: int,
        features: int,
        dropout: float,
        kernel_initializer: MakeInitializer,
        recurrent_initializer: MakeInitializer,
        dtype: str,
        recompute: bool = False,
    ) -> None:
        """Create the layers for inputs of so many features; the initializers are made for each variable's name.

        `recompute` is that of :class:`dist_mp.model.lstm.LSTM`.
        """
        super().__init__(name="lstm", dtype=dtype)
        self.dropout = dropout
        self.units = units
        self.layers = []
        for i in range(layers):
            layer = LSTM(
                units,
                return_sequences=True,
                recompute=recompute,
                kernel_initializer=kernel_initializer(f"lstm_{i}/kernel"),
                recurrent_initializer=recurrent_initializer(f"lstm_{i}/recurrent_kernel"),
                name=f"lstm_{i}",
                dtype=dtype,
            )
            layer.build((None, None, features if i == 0 else units))
            self.layers.append(layer)
        self.built = True

    @property
    def path(self) -> str:
        """What computes the recurrence, and why, for the run's header."""
        name = "cuDNN through Keras" if self.layers[0].computed_by == "cudnn" else "dist_mp's own LSTM"
        return f"{name} ({self.layers[0].computed_why})"

    def initial_state(self, rows: int) -> State:
        """Zeros: for each layer h [rows, N] in the compute dtype and c [rows, N] float32."""
        h = tf.zeros((rows, self.units), self.compute_dtype)
        return [h, tf.zeros((rows, self.units), exact_dtype(tf.as_dtype(self.compute_dtype)))] * len(self.layers)

    def call(self, x: tf.Tensor, state: State, training: bool, seed: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Outputs [T, B, N] of the last layer for x [T, B, D], and the state after the last step."""
        rate = self.dropout if training else 0.0
        after: State = []
        for i, layer in enumerate(self.layers):
            x, states = layer.run(stateless_dropout(x, rate, seed, salt=i), state[2 * i : 2 * i + 2])
            after += states
        return stateless_dropout(x, rate, seed, salt=len(self.layers)), after
