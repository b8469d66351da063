"""An LSTM layer that takes the place of Keras's."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dist_mp.model.lstm_sequence import lstm_sequence
from dist_mp.model.recurrent import OwnRecurrence, state_dtype


@keras.saving.register_keras_serializable(package="dist_mp")
class LSTM(OwnRecurrence, keras.layers.LSTM):
    """Drop-in for `keras.layers.LSTM` with the same arguments, options, weights and gate order.

    It differs in the computation, which is :func:`dist_mp.model.lstm_sequence.lstm_sequence`, and in what
    :class:`dist_mp.model.recurrent.OwnRecurrence` says: its cell state is float32 always.
    """

    def __init__(self, *args: Any, recompute: bool = False, **kwargs: Any) -> None:
        """Take the arguments of `keras.layers.LSTM`; `recompute` trades time for memory."""
        # Without autocast: Keras would round a float32 cell state that a call is given.
        kwargs.setdefault("autocast", False)
        super().__init__(*args, **kwargs)
        self._take_over(recompute)

    def state_dtypes(self) -> list[tf.DType]:
        """The dtypes of h, the compute dtype, and of c, float32."""
        return [tf.as_dtype(self.compute_dtype), state_dtype(self.compute_dtype)]

    def sequence(
        self,
        x: tf.Tensor,
        states: list[tf.Tensor],
        mask: tf.Tensor | None = None,
        recurrent_scale: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The recurrence on time-major x [T, B, D] from h and c on: h of all steps [T, B, N], and h and c after."""
        unroll = True if self.unroll else None
        h, *after = lstm_sequence(
            x, *self._weights(x.dtype), *states, mask, recurrent_scale, unroll=unroll, recompute=self.recompute
        )
        return h, after
