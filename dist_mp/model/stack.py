"""Stacked recurrent layers with dropout and explicit state, time-major: what the models have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dist_mp.model.base import State
from dist_mp.model.gru import GRU
from dist_mp.model.lstm import LSTM
from dist_mp.model.ops import stateless_dropout

MakeInitializer = Callable[[str], keras.Initializer]


def make_layer(
    cell: str,
    name: str,
    units: int,
    features: int,
    kernel_initializer: MakeInitializer,
    recurrent_initializer: MakeInitializer,
    dtype: str,
    recompute: bool = False,
    projection: int | None = None,
) -> Any:
    """An LSTM or GRU layer (`cell`) of so many units for so many features, built; all outputs are returned."""
    make: Any = {"lstm": LSTM, "gru": GRU}[cell]
    layer = make(
        units,
        return_sequences=True,
        recompute=recompute,
        **({} if projection is None else {"projection": projection}),
        kernel_initializer=kernel_initializer(f"{name}/kernel"),
        recurrent_initializer=recurrent_initializer(f"{name}/recurrent_kernel"),
        name=name,
        dtype=dtype,
    )
    layer.build((None, None, features))
    return layer


def describe_path(layer: Any) -> str:
    """What computes the recurrence of a layer, and why, for the run's header."""
    name = "cuDNN through Keras" if layer.computed_by == "cudnn" else "dist_mp's own"
    return f"{name} ({layer.computed_why})"


class RecurrentStack(keras.layers.Layer):
    """L LSTM or GRU layers of N cells, with dropout on the input of each and on the output (Zaremba et al. 2014)."""

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
        cell: str = "lstm",
        projection: int | None = None,
        name: str | None = None,
    ) -> None:
        """Create the layers for inputs of so many features; the initializers are made for each variable's name.

        `recompute` and `projection` (of LSTM layers) are those of :class:`dist_mp.model.lstm.LSTM`;
        `name` (by default the kind of cell) tells several stacks of a model apart.
        """
        name = name or cell
        super().__init__(name=name, dtype=dtype)
        self.dropout = dropout
        self.features = projection or units
        self.layers = [
            make_layer(
                cell,
                f"{name}_{i}",
                units,
                features if i == 0 else self.features,
                kernel_initializer,
                recurrent_initializer,
                dtype,
                recompute,
                projection,
            )
            for i in range(layers)
        ]
        self.built = True

    @property
    def path(self) -> str:
        """What computes the recurrence, and why, for the run's header."""
        return describe_path(self.layers[0])

    def initial_state(self, rows: int) -> State:
        """Zeros for each layer: h [rows, N] in the compute dtype and c [rows, N] float32, of a GRU h float32."""
        return [state for layer in self.layers for state in layer.get_initial_state(rows)]

    def call(
        self, x: tf.Tensor, state: State, training: bool, seed: tf.Tensor, mask: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Outputs [T, B, N] of the last layer for x [T, B, D], and the state after the last step.

        Where `mask` (bool [T, B]) is false the states are carried over unchanged.
        """
        rate = self.dropout if training else 0.0
        after: State = []
        for i, layer in enumerate(self.layers):
            before = state[len(after) : len(after) + len(layer.state_dtypes())]
            x = stateless_dropout(x, rate, seed, salt=i)
            x, states = layer.run(x, before) if mask is None else layer.sequence(x, before, mask)
            after += states
        return stateless_dropout(x, rate, seed, salt=len(self.layers)), after
