"""Keras layers whose gradients are summed in float32."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dist_mp.model.ops import add_bias, conv1d, conv2d, dense, embed


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
    """`keras.layers.Conv1D` (valid, with a bias) as one matrix product; gradients as in `Dense`."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The convolution and the activation of inputs [R, L, C]: [R, (L - K) // stride + 1, N]."""
        weights = _weights(self.kernel, self.bias, inputs.dtype)
        return self.activation(conv1d(inputs, *weights, self.strides[0]))


class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D` (same padding, stride 1, with a bias); the bias's gradient is summed in float32."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The convolution and the activation of inputs [R, H, W, C]: [R, H, W, N]."""
        kernel, bias = _weights(self.kernel, self.bias, inputs.dtype)
        return self.activation(add_bias(conv2d(inputs, kernel), bias))


def _weights(kernel: Any, bias: Any, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(tf.convert_to_tensor(kernel), dtype), tf.cast(tf.convert_to_tensor(bias), dtype)
