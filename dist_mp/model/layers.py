"""Keras layers whose gradients are summed in float32, and initial values that do not depend on the precision."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dist_mp.model.ops import conv1d, dense, embed


class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding` with a dense gradient that is summed in float32 and rounded once."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Vectors [..., N] of words [...]."""
        return tf.cast(embed(tf.convert_to_tensor(self.embeddings), tf.cast(inputs, tf.int32)), self.compute_dtype)


class Dense(keras.layers.Dense):
    """`keras.layers.Dense` (with a bias) whose bias gradient is summed in float32 and rounded once."""

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The affine map and the activation, over the last axis of inputs [..., D]."""
        rows = tf.reshape(inputs, (-1, inputs.shape[-1]))
        outputs = dense(rows, *_weights(self.kernel, self.bias, inputs.dtype))
        shape = tf.concat([tf.shape(inputs)[:-1], [self.units]], axis=0)
        outputs = tf.ensure_shape(tf.reshape(outputs, shape), (*inputs.shape[:-1], self.units))
        return self.activation(outputs)


class Conv1D(keras.layers.Conv1D):
    """`keras.layers.Conv1D` (valid, stride 1, with a bias) as one matrix product; gradients as in `Dense`."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The convolution and the activation of inputs [R, L, C]: [R, L - K + 1, N]."""
        return self.activation(conv1d(inputs, *_weights(self.kernel, self.bias, inputs.dtype)))


def _weights(kernel: Any, bias: Any, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(tf.convert_to_tensor(kernel), dtype), tf.cast(tf.convert_to_tensor(bias), dtype)


class Float32Draw(keras.initializers.Initializer):
    """An initializer that draws in float32 and rounds once, so that every precision starts from the same values."""

    def __init__(self, inner: keras.initializers.Initializer) -> None:
        """Wrap a seeded initializer."""
        self.inner = inner

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> tf.Tensor:
        """Values of `shape`, rounded to `dtype`."""
        return tf.cast(self.inner(shape, dtype="float32"), dtype or "float32")

    def get_config(self) -> dict[str, Any]:
        """The wrapped initializer."""
        return {"inner": keras.initializers.serialize(self.inner)}


class SeededInitializers:
    """Initializers of a model, each seeded by the model's seed and the variable's name."""

    def __init__(self, seed: int) -> None:
        """Derive everything from `seed`."""
        self._seed = seed

    def __call__(self, name: str, kind: Callable[..., keras.initializers.Initializer], **settings: float) -> Float32Draw:
        """The initializer `kind(**settings)` of the variable `name`."""
        return Float32Draw(kind(**settings, seed=zlib.crc32(f"{self._seed}/{name}".encode())))
