"""An LSTM layer that takes the place of Keras's on a CPU."""

from __future__ import annotations

import keras
import tensorflow as tf

from dist_mp.model.lstm_sequence import lstm_sequence

__all__ = ["LSTM", "lstm_sequence"]


class LSTM(keras.layers.LSTM):
    """Drop-in for `keras.layers.LSTM` with the same arguments, options, weights and gate order.

    Only the computation differs: it is :func:`lstm_sequence`. That holds for tanh and sigmoid activations with a
    bias; other settings are refused.
    """

    def sequence(
        self, x: tf.Tensor, h0: tf.Tensor, c0: tf.Tensor, mask: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The recurrence itself on time-major x [T, B, D]; see :func:`lstm_sequence`."""
        cell = self.cell
        weights = (tf.convert_to_tensor(w) for w in (cell.kernel, cell.recurrent_kernel, cell.bias))
        return lstm_sequence(x, *(tf.cast(w, x.dtype) for w in weights), h0, c0, mask)
