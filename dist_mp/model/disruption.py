"""Disruption predictor: convolutions over 1D profiles joined with 0D signals, stacked LSTM, one output a time step.

The network and its targets are those of the FRNN code (plasma-python, `models/builder.py` and `models/targets.py`;
Svyatkovskiy, Kates-Harbeck and Tang, MLHPC 2017).
"""

from __future__ import annotations

import keras
import tensorflow as tf

from dist_mp.config import DisruptionModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Conv1D, Dense
from dist_mp.model.ops import max_pool
from dist_mp.model.stack import RecurrentStack

CONVOLUTIONS = 3
SHORTEST_PROFILE = 22
"""Points that leave one point after three times a convolution of width 3 and a pooling by 2."""


class ProfileNetwork(keras.layers.Layer):
    """Features of the 1D profiles of a time step."""

    def __init__(self, config: DisruptionModel, spec: DataSpec, initializers: SeededInitializers, dtype: str) -> None:
        """Create the layers for so many profiles of so many points."""
        super().__init__(name="profiles", dtype=dtype)

        def glorot(name: str) -> keras.Initializer:
            return initializers(f"profiles/{name}", keras.initializers.GlorotUniform)

        self.shape_in = (spec.profiles, spec.profile_points)
        self.convolutions, points, channels = [], spec.profile_points, spec.profiles
        for i in range(CONVOLUTIONS):
            filters = max(1, config.filters // 2**i)
            for width in (3, 1):
                name = f"conv_{i}_{width}"
                layer = Conv1D(filters, width, kernel_initializer=glorot(name), name=name, dtype=dtype)
                layer.build((None, points, channels))
                self.convolutions.append(layer)
                points, channels = points - width + 1, filters
            points //= 2
        self.features = max(1, config.profile_dense // 4)
        self.hidden = [
            Dense(n, activation="relu", kernel_initializer=glorot(name), name=name, dtype=dtype)
            for n, name in ((config.profile_dense, "dense_0"), (self.features, "dense_1"))
        ]
        self.hidden[0].build((None, points * channels))
        self.hidden[1].build((None, config.profile_dense))
        self.built = True

    def call(self, profiles: tf.Tensor) -> tf.Tensor:
        """Features [R, profile_dense // 4] of profiles [R, profiles * points], one profile after the other."""
        x = tf.transpose(tf.reshape(profiles, (-1, *self.shape_in)), (0, 2, 1))
        for wide, narrow in zip(self.convolutions[::2], self.convolutions[1::2], strict=True):
            x = max_pool(tf.nn.relu(narrow(wide(x))))
        x = tf.reshape(x, (-1, x.shape[1] * x.shape[2]))
        for layer in self.hidden:
            x = layer(x)
        return x


class DisruptionNetwork(keras.Model):
    """The layers of the predictor, in the order of forward, all variables in one dtype."""

    def __init__(self, config: DisruptionModel, spec: DataSpec, seed: int, dtype: str) -> None:
        """Create the variables: Glorot and orthogonal weights, biases at 0, forget gates' biases at 1."""
        super().__init__(name="disruption", dtype=dtype)
        initializers = SeededInitializers(seed)
        self.scalars, self.profiles, features = spec.scalars, None, spec.scalars
        if spec.profiles:
            self.profiles = ProfileNetwork(config, spec, initializers, dtype)
            features += self.profiles.features
        self.stack = RecurrentStack(
            config.layers,
            config.units,
            features,
            config.dropout,
            lambda name: initializers(name, keras.initializers.GlorotUniform),
            lambda name: initializers(name, keras.initializers.Orthogonal),
            dtype,
            config.recompute,
        )
        output_initializer = initializers("output", keras.initializers.GlorotUniform)
        self.output_layer = Dense(1, kernel_initializer=output_initializer, name="output", dtype=dtype)
        self.output_layer.build((None, config.units))
        self.built = True

    def call(self, x: tf.Tensor, state: State, training: bool, seed: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Outputs [B, T] and the state after the window, for features [B, T, F]."""
        x = tf.transpose(tf.cast(x, self.compute_dtype), (1, 0, 2))
        if self.profiles is not None:
            features = self.profiles(tf.reshape(x[:, :, self.scalars :], (-1, x.shape[2] - self.scalars)))
            features = tf.reshape(features, tf.concat([tf.shape(x)[:2], [features.shape[1]]], axis=0))
            x = tf.concat([x[:, :, : self.scalars], features], axis=2)
        h, state = self.stack.call(x, state, training, seed)
        return tf.transpose(self.output_layer(h)[:, :, 0]), state


class DisruptionTask(Task):
    """Prediction of a disruption at every time step; a larger score means more danger.

    Targets are labels +1 (a disruption is near) and -1 for hinge and maxhinge, 1 and 0 for binary, and minus the
    logarithm of the time to disruption for ttd.
    """

    def __init__(self, config: DisruptionModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Build the model for the signals of `spec`."""
        if spec.profiles and spec.profile_points < SHORTEST_PROFILE:
            raise UserError(
                f"data.profile_points is {spec.profile_points}, but three convolutions with pooling need at least "
                f"{SHORTEST_PROFILE} points"
            )
        self._target = config.target
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.model = DisruptionNetwork(config, spec, seed, compute_dtype)

    def initial_state(self, rows: int) -> State:
        """Zero state for so many rows."""
        return self.model.stack.initial_state(rows)

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Outputs [B, T] in the compute dtype for features [B, T, F], scalars first, and the state after them."""
        return self.model.call(inputs, state, training, seed)

    def losses(self, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Loss of the configured target [B, T]; 0 with a gradient of 0 at padded steps, whatever they hold."""
        return target_losses(self._target, outputs, targets, weight)

    def scores(self, outputs: tf.Tensor) -> tf.Tensor:
        """How dangerous each step looks, float32 [B, T]: the output, for binary its sigmoid."""
        y = tf.cast(outputs, tf.float32)
        return tf.sigmoid(y) if self._target == "binary" else y


def target_losses(target: str, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Loss of hinge, maxhinge, binary or ttd [B, T], float32, of outputs [B, T]; 0 where `weight` is 0."""
    valid = weight > 0
    y = tf.where(valid, tf.cast(outputs, tf.float32), 0.0)
    label = tf.where(valid, targets, 0.0)
    if target == "binary":
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=y)
    elif target == "ttd":
        losses = tf.math.squared_difference(y, label)
    else:
        losses = tf.nn.relu(1.0 - label * y)
    if target == "maxhinge":
        # Only the step with the largest prediction counts, for as many steps as the row has.
        largest = tf.argmax(tf.where(valid, y, y.dtype.min), axis=1)
        steps = tf.reduce_sum(tf.cast(valid, tf.float32), axis=1, keepdims=True)
        losses = losses * tf.one_hot(largest, y.shape[1]) * steps
    return tf.where(valid, losses, 0.0)
