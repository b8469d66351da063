"""A GRU layer that takes the place of Keras's."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dist_mp.errors import UserError
from dist_mp.model.gru_sequence import gru_sequence
from dist_mp.model.recurrent import OwnRecurrence, state_dtype


@keras.saving.register_keras_serializable(package="dist_mp")
class GRU(OwnRecurrence, keras.layers.GRU):
    """Drop-in for `keras.layers.GRU` (with `reset_after`, its default): same arguments, options and weights.

    It differs in the computation, which is :func:`dist_mp.model.gru_sequence.gru_sequence`, and in what
    :class:`dist_mp.model.recurrent.OwnRecurrence` says: its state is float32 always, only the outputs are 16 bits.
    """

    def __init__(self, *args: Any, recompute: bool = False, **kwargs: Any) -> None:
        """Take the arguments of `keras.layers.GRU`; `recompute` trades time for memory."""
        kwargs.setdefault("autocast", False)
        super().__init__(*args, **kwargs)
        if not self.reset_after:
            raise UserError(f"layer {self.name}: needs reset_after true; use keras.layers.GRU for the older form")
        self._take_over(recompute)

    def state_dtypes(self) -> list[tf.DType]:
        """The one state, float32."""
        return [state_dtype(self.compute_dtype)]

    def sequence(
        self,
        x: tf.Tensor,
        states: list[tf.Tensor],
        mask: tf.Tensor | None = None,
        recurrent_scale: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The recurrence on time-major x [T, B, D] from the state on: h of all steps [T, B, N], and the state after."""
        unroll = True if self.unroll else None
        h, after = gru_sequence(
            x, *self._weights(x.dtype), *states, mask, recurrent_scale, unroll=unroll, recompute=self.recompute
        )
        return h, [after]
