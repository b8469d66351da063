"""What the LSTM and the GRU layer share: Keras's options around a recurrence of our own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import keras
import tensorflow as tf

from dist_mp.errors import UserError
from dist_mp.model.initial import Float32Draw
from dist_mp.model.ops import stateless_dropout
from dist_mp.model.time_loop import exact_dtype

CUDNN_DTYPES = ("float16", "float32", "float64")


class OwnRecurrence:
    """Mixed into a Keras RNN layer with a fused cell; the class that mixes it in gives the recurrence and its states.

    Three things differ from Keras's layer:

    * The carried float32 state (c of an LSTM, h of a GRU) is float32 between calls too, whatever the dtype policy: as
      `initial_state`, as a returned state and in a stateful layer.
    * Dropout masks are a pure function of `dropout_seed` (int32 [2]) where a call is given one; else Keras's seed
      generator supplies a seed. One mask serves all gates and all time steps.
    * Activations are tanh and sigmoid, and there is a bias; other settings are refused.

    With `recompute` the gates are not kept for the backward pass but computed again there: half the memory that each
    further layer of a stack adds, for about a third more time.

    On a GPU the layer computes through Keras with cuDNN where its conditions hold (`computed_by` says which); there
    the carried state is rounded to the compute dtype within a call.
    """

    recompute: bool

    def _take_over(self: Any, recompute: bool) -> None:
        """Check the settings of the Keras layer and make its initial values independent of the precision."""
        cell = self.cell
        activations = (cell.activation, cell.recurrent_activation)
        if activations != (keras.activations.tanh, keras.activations.sigmoid) or not cell.use_bias:
            raise UserError(
                f"layer {self.name}: needs activation tanh, recurrent_activation sigmoid and use_bias true; "
                f"use keras.layers.{type(self).__name__} for others"
            )
        self.recompute = recompute
        # Some initializers (orthogonal) have no bfloat16 kernel, and all precisions shall start from the same values.
        cell.kernel_initializer = Float32Draw(cell.kernel_initializer)
        cell.recurrent_initializer = Float32Draw(cell.recurrent_initializer)
        gpu = self.use_cudnn is not False and bool(tf.config.list_physical_devices("GPU"))
        self.computed_by, self.computed_why = recurrent_path(
            gpu,
            tf.as_dtype(self.compute_dtype).name,
            self.recurrent_dropout,
            recompute,
            self.unroll,
            getattr(self, "projection", None) is not None,
        )

    def get_config(self: Any) -> dict[str, Any]:
        """Keras's settings of the layer, and ours."""
        return super().get_config() | {"recompute": self.recompute}  # type: ignore[misc]

    @abstractmethod
    def state_dtypes(self) -> list[tf.DType]:
        """The dtype of each state [B, N]."""

    @abstractmethod
    def sequence(
        self,
        x: tf.Tensor,
        states: list[tf.Tensor],
        mask: tf.Tensor | None = None,
        recurrent_scale: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The recurrence itself on time-major x [T, B, D], in the dtype of x: h of all steps [T, B, N] and the states.

        Args:
            x: inputs [T, B, D].
            states: the states before, each of its dtype.
            mask: bool [T, B] or None.
            recurrent_scale: [B, N] or None; see the recurrence's own function.
        """

    def run(self: Any, x: tf.Tensor, states: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """:meth:`sequence` without mask and dropout, by cuDNN where :attr:`computed_by` says so."""
        if self.computed_by == "own":
            return self.sequence(x, states)
        rounded = [tf.cast(s, x.dtype) for s in states]
        batch_major = tf.transpose(x, (1, 0, 2))
        _, outputs, after = super().inner_loop(batch_major, rounded, None)  # type: ignore[misc]
        exact = [tf.cast(s, dtype) for s, dtype in zip(after, self.state_dtypes(), strict=True)]
        return tf.transpose(outputs, (1, 0, 2)), exact

    def get_initial_state(self: Any, batch_size: Any) -> list[tf.Tensor]:
        """Zeros, each of its dtype."""
        return [tf.zeros((batch_size, n), d) for n, d in zip(self.state_size, self.state_dtypes(), strict=True)]

    def _create_state_variables(self: Any, batch_size: int) -> None:
        states = [
            keras.Variable(state, trainable=False, dtype=state.dtype.name, name=f"state_{i}")
            for i, state in enumerate(self.get_initial_state(batch_size))
        ]
        self._tracker.unlock()
        self.states = states
        self._tracker.lock()

    def call(
        self: Any,
        sequences: tf.Tensor,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
        dropout_seed: tf.Tensor | None = None,
    ) -> Any:
        """Outputs for sequences [B, T, D]; arguments and results as in the Keras layer.

        A row whose steps are all masked keeps its state and has outputs of 0; a masked step repeats the output before
        it (0 with `zero_output_for_mask`).
        """
        x = tf.cast(tf.transpose(sequences, (1, 0, 2)), self.compute_dtype)
        rows = x.shape[1] if x.shape[1] is not None else tf.shape(x)[1]
        mask = keras.tree.flatten(mask)[0] if mask is not None else None
        mask = tf.transpose(tf.cast(mask, tf.bool)) if mask is not None else None
        if self.go_backwards:
            x, mask = tf.reverse(x, [0]), None if mask is None else tf.reverse(mask, [0])
        if initial_state is None:
            initial_state = self._stateful_start(x) if self.stateful else self.get_initial_state(rows)
        given = keras.tree.flatten(initial_state)
        states = [tf.cast(tf.convert_to_tensor(s), dtype) for s, dtype in zip(given, self.state_dtypes(), strict=True)]
        x, recurrent_scale = self._dropped(x, rows, training, dropout_seed)
        if mask is None and recurrent_scale is None and self.return_sequences and not self.go_backwards:
            outputs, states = self.run(x, states)
        else:
            outputs, states = self.sequence(x, states, mask, recurrent_scale)
        if self.stateful:
            for variable, state in zip(self.states, states, strict=True):
                variable.assign(state)
        if mask is not None:
            # Where no step was valid so far there is no output yet, whatever the initial state.
            shown = mask if self.zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32)) > 0
            outputs = tf.where(shown[:, :, None], outputs, tf.zeros_like(outputs))
        output = tf.transpose(outputs, (1, 0, 2)) if self.return_sequences else outputs[-1]
        return (output, *states) if self.return_state else output

    def _stateful_start(self: Any, x: tf.Tensor) -> list:
        expected, rows = self.states[0].shape[0], x.shape[1]
        if rows is not None and rows != expected:
            raise UserError(f"layer {self.name}: stateful with state for {expected} rows, got a batch of {rows}")
        return self.states

    def _dropped(
        self: Any, x: tf.Tensor, rows: Any, training: bool, seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The inputs after dropout, and the factor on h of recurrent dropout."""
        if not training or not (self.dropout or self.recurrent_dropout):
            return x, None
        if seed is None:
            seed = tf.cast(self.cell.seed_generator.next(), tf.int32)
        x = x * stateless_dropout(tf.ones((1, rows, x.shape[2]), x.dtype), self.dropout, seed, salt=0)
        if not self.recurrent_dropout:
            return x, None
        return x, stateless_dropout(tf.ones((rows, self.state_size[0]), x.dtype), self.recurrent_dropout, seed, salt=1)

    def _weights(self: Any, dtype: tf.DType) -> list[tf.Tensor]:
        cell = self.cell
        return [tf.cast(tf.convert_to_tensor(w), dtype) for w in (cell.kernel, cell.recurrent_kernel, cell.bias)]


def recurrent_path(
    gpu: bool, compute_dtype: str, recurrent_dropout: float, recompute: bool, unroll: bool, projected: bool = False
) -> tuple[str, str]:
    """What computes an unmasked recurrence, `cudnn` or `own`, and why: cuDNN on a GPU where its conditions hold."""
    if not gpu:
        return "own", "no GPU to use"
    for holds, reason in (
        (compute_dtype in CUDNN_DTYPES, f"cuDNN is used for {', '.join(CUDNN_DTYPES)}"),
        (not recurrent_dropout, "cuDNN has no recurrent dropout"),
        (not recompute, "cuDNN keeps all gates"),
        (not unroll, "cuDNN does not unroll"),
        (not projected, "Keras has no projection in cuDNN"),
    ):
        if not holds:
            return "own", reason
    return "cudnn", "a GPU, and cuDNN's conditions hold"


def state_dtype(compute_dtype: str) -> tf.DType:
    """The dtype of the exactly carried state under a compute dtype."""
    return exact_dtype(tf.as_dtype(compute_dtype))
