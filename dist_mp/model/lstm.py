"""An LSTM layer that takes the place of Keras's."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dist_mp.model.lstm_sequence import lstm_sequence
from dist_mp.model.recurrent import OwnRecurrence, state_dtype


class ProjectedCell(keras.layers.LSTMCell):
    """The weights of an LSTM whose h is a projection of its output: `projection_kernel` [N, P] beside Keras's."""

    def __init__(self, projection: int, **settings: Any) -> None:
        """Take P and the settings of `keras.layers.LSTMCell`."""
        super().__init__(**settings)
        self.projection = projection
        self.state_size, self.output_size = [projection, self.units], projection

    def add_weight(self, shape: Any = None, *args: Any, name: str | None = None, **settings: Any) -> Any:
        """Keras's, but that the recurrent weights are [P, 4N]."""
        if name == "recurrent_kernel":
            shape = (self.projection, 4 * self.units)
        return super().add_weight(shape, *args, name=name, **settings)

    def build(self, input_shape: Any) -> None:
        """Create the variables; the projection starts as the kernel does."""
        super().build(input_shape)
        self.projection_kernel = self.add_weight(
            (self.units, self.projection), name="projection_kernel", initializer=self.kernel_initializer
        )


@keras.saving.register_keras_serializable(package="dist_mp")
class LSTM(OwnRecurrence, keras.layers.LSTM):
    """Drop-in for `keras.layers.LSTM` with the same arguments, options, weights and gate order.

    With `projection` P, h is the product of the cells' output with weights [N, P] (Sak, Senior and Beaufays 2014), as
    in the big LSTM of Jozefowicz et al. (2016, arXiv 1602.02410): outputs and h are P wide, the cell state N.

    It differs in the computation, which is :func:`dist_mp.model.lstm_sequence.lstm_sequence`, and in what
    :class:`dist_mp.model.recurrent.OwnRecurrence` says: its cell state is float32 always.
    """

    def __init__(self, *args: Any, recompute: bool = False, projection: int | None = None, **kwargs: Any) -> None:
        """Take the arguments of `keras.layers.LSTM`; `recompute` trades time for memory, `projection` is P."""
        # Without autocast: Keras would round a float32 cell state that a call is given.
        kwargs.setdefault("autocast", False)
        super().__init__(*args, **kwargs)
        self.projection = projection
        if projection is not None:
            keras_layer: Any = self
            settings = keras_layer.cell.get_config()
            del keras_layer.cell
            keras_layer.cell = ProjectedCell(projection, **settings)
            self.state_size = list(keras_layer.cell.state_size)
        self._take_over(recompute)

    def get_config(self) -> dict[str, Any]:
        """Keras's settings of the layer, and ours."""
        return super().get_config() | {"projection": self.projection}

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
        """The recurrence on time-major x [T, B, D] from h and c on: h of all steps [T, B, P], and h and c after."""
        unroll = True if self.unroll else None
        projection = None
        if self.projection is not None:
            projection = tf.cast(tf.convert_to_tensor(self.cell.projection_kernel), x.dtype)
        weights, options = self._weights(x.dtype), (mask, recurrent_scale, projection)
        h, *after = lstm_sequence(x, *weights, *states, *options, unroll=unroll, recompute=self.recompute)
        return h, after
