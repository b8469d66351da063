"""An LSTM layer that takes the place of Keras's on a CPU."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dist_mp.errors import UserError
from dist_mp.model.initial import Float32Draw
from dist_mp.model.lstm_sequence import UNROLL_LIMIT, exact_dtype, lstm_sequence
from dist_mp.model.ops import stateless_dropout

__all__ = ["LSTM", "UNROLL_LIMIT", "lstm_sequence"]


@keras.saving.register_keras_serializable(package="dist_mp")
class LSTM(keras.layers.LSTM):
    """Drop-in for `keras.layers.LSTM` with the same arguments, options, weights and gate order.

    It differs in the computation, which is :func:`lstm_sequence`, and in three details:

    * The cell state is float32 between calls too, whatever the dtype policy: as `initial_state`, as a returned state
      and in a stateful layer.
    * Dropout masks are a pure function of `dropout_seed` (int32 [2]) where a call is given one; else Keras's seed
      generator supplies a seed. One mask serves all four gates and all time steps.
    * Activations are tanh and sigmoid, and there is a bias; other settings are refused.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of `keras.layers.LSTM`."""
        # Without autocast: Keras would round a float32 cell state that a call is given.
        super().__init__(*args, autocast=False, **kwargs)
        cell = self.cell
        activations = (cell.activation, cell.recurrent_activation)
        if activations != (keras.activations.tanh, keras.activations.sigmoid) or not cell.use_bias:
            raise UserError(
                f"layer {self.name}: needs activation tanh, recurrent_activation sigmoid and use_bias true; "
                "use keras.layers.LSTM for others"
            )
        # Some initializers (orthogonal) have no bfloat16 kernel, and all precisions shall start from the same values.
        cell.kernel_initializer = Float32Draw(cell.kernel_initializer)
        cell.recurrent_initializer = Float32Draw(cell.recurrent_initializer)

    def get_initial_state(self, batch_size: Any) -> list[tf.Tensor]:
        """Zeros: h [B, N] in the compute dtype and c [B, N] float32."""
        compute = tf.as_dtype(self.compute_dtype)
        return [tf.zeros((batch_size, self.units), dtype) for dtype in (compute, exact_dtype(compute))]

    def _create_state_variables(self, batch_size: int) -> None:
        states = [
            keras.Variable(state, trainable=False, dtype=state.dtype.name, name=name)
            for state, name in zip(self.get_initial_state(batch_size), ("state_h", "state_c"), strict=True)
        ]
        self._tracker.unlock()
        self.states = states
        self._tracker.lock()

    def sequence(
        self,
        x: tf.Tensor,
        h0: tf.Tensor,
        c0: tf.Tensor,
        mask: tf.Tensor | None = None,
        recurrent_scale: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The recurrence itself on time-major x [T, B, D], in the dtype of x; see :func:`lstm_sequence`."""
        cell = self.cell
        weights = (tf.cast(tf.convert_to_tensor(w), x.dtype) for w in (cell.kernel, cell.recurrent_kernel, cell.bias))
        return lstm_sequence(x, *weights, h0, c0, mask, recurrent_scale, unroll=True if self.unroll else None)

    def call(
        self,
        sequences: tf.Tensor,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
        dropout_seed: tf.Tensor | None = None,
    ) -> Any:
        """Outputs for sequences [B, T, D]; arguments and results as in `keras.layers.LSTM`.

        A row whose steps are all masked keeps its state and has outputs of 0; a masked step repeats the output before
        it (0 with `zero_output_for_mask`).
        """
        compute = tf.as_dtype(self.compute_dtype)
        x = tf.cast(tf.transpose(sequences, (1, 0, 2)), compute)
        rows = x.shape[1] if x.shape[1] is not None else tf.shape(x)[1]
        mask = keras.tree.flatten(mask)[0] if mask is not None else None
        mask = tf.transpose(tf.cast(mask, tf.bool)) if mask is not None else None
        if self.go_backwards:
            x, mask = tf.reverse(x, [0]), None if mask is None else tf.reverse(mask, [0])
        if initial_state is None:
            initial_state = self._stateful_start(x) if self.stateful else self.get_initial_state(rows)
        h0, c0 = (tf.convert_to_tensor(state) for state in initial_state)
        x, recurrent_scale = self._dropped(x, rows, training, dropout_seed)
        outputs, h, c = self.sequence(x, tf.cast(h0, compute), tf.cast(c0, exact_dtype(compute)), mask, recurrent_scale)
        if self.stateful:
            for variable, state in zip(self.states, (h, c), strict=True):
                variable.assign(state)
        if mask is not None:
            # Where no step was valid so far there is no output yet, whatever the initial state.
            shown = mask if self.zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32)) > 0
            outputs = tf.where(shown[:, :, None], outputs, tf.zeros_like(outputs))
        output = tf.transpose(outputs, (1, 0, 2)) if self.return_sequences else outputs[-1]
        return (output, h, c) if self.return_state else output

    def _stateful_start(self, x: tf.Tensor) -> list:
        expected, rows = self.states[0].shape[0], x.shape[1]
        if rows is not None and rows != expected:
            raise UserError(f"layer {self.name}: stateful with state for {expected} rows, got a batch of {rows}")
        return self.states

    def _dropped(
        self, x: tf.Tensor, rows: Any, training: bool, seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The inputs after dropout, and the factor on h of recurrent dropout."""
        if not training or not (self.dropout or self.recurrent_dropout):
            return x, None
        if seed is None:
            seed = tf.cast(self.cell.seed_generator.next(), tf.int32)
        x = x * stateless_dropout(tf.ones((1, rows, x.shape[2]), x.dtype), self.dropout, seed, salt=0)
        if not self.recurrent_dropout:
            return x, None
        return x, stateless_dropout(tf.ones((rows, self.units), x.dtype), self.recurrent_dropout, seed, salt=1)
