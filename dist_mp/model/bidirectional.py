"""Stacked bidirectional recurrent layers over whole sequences, as in Deep Speech 2 (Amodei et al. 2016).

The backward direction of a row begins at its last valid step: each row is reversed within its own length, so that it is
read from its end on and padding comes after it, where it can reach no valid step. Legend of shapes: T time steps, B
rows, D features, N cells.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from dist_mp.model.ops import stateless_dropout
from dist_mp.model.stack import MakeInitializer, describe_path, make_layer


class BidirectionalStack(keras.layers.Layer):
    """L layers of N cells in each direction, whose outputs are added; dropout on each one's input and the output."""

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
    ) -> None:
        """Create the layers for inputs of so many features; arguments as those of the unidirectional stack."""
        super().__init__(name=cell, dtype=dtype)
        self.dropout = dropout
        self.features = units
        self.layers = []
        for i in range(layers):
            for direction in ("forward", "backward"):
                layer = make_layer(
                    cell,
                    f"{cell}_{i}_{direction}",
                    units,
                    features if i == 0 else units,
                    kernel_initializer,
                    recurrent_initializer,
                    dtype,
                    recompute,
                )
                self.layers.append(layer)
        self.built = True

    @property
    def path(self) -> str:
        """What computes the recurrence, and why, for the run's header."""
        return describe_path(self.layers[0])

    def call(self, x: tf.Tensor, lengths: tf.Tensor, training: bool, seed: tf.Tensor) -> tf.Tensor:
        """Outputs [T, B, N] of the last layer for x [T, B, D] with so many valid steps a row (int32 [B]).

        Outputs beyond a row's length mean nothing.
        """

        def reversed_rows(sequence: tf.Tensor) -> tf.Tensor:
            return tf.reverse_sequence(sequence, lengths, seq_axis=0, batch_axis=1)

        rate = self.dropout if training else 0.0
        for i, (ahead, back) in enumerate(zip(self.layers[::2], self.layers[1::2], strict=True)):
            x = stateless_dropout(x, rate, seed, salt=i)
            past, _ = ahead.run(x, ahead.get_initial_state(x.shape[1]))
            future, _ = back.run(reversed_rows(x), back.get_initial_state(x.shape[1]))
            x = past + reversed_rows(future)
        return stateless_dropout(x, rate, seed, salt=len(self.layers) // 2)
