"""The time loop of a recurrent layer: unrolled or a `tf.while_loop`; what each step yields is collected in columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

UNROLL_LIMIT = 40
"""Longest sequence (time steps) whose loop is unrolled by default: a longer one costs more to trace than it gains."""

Carry: TypeAlias = tuple[tf.Tensor, ...]


def exact_dtype(compute: tf.DType) -> tf.DType:
    """The dtype of gates and cell state: float32, or float64 where the products are."""
    return tf.float64 if compute == tf.float64 else tf.float32


def transposed(matrix: tf.Tensor) -> tf.Tensor:
    """The transpose as a matrix of its own: the reshapes keep TensorFlow from folding it into the products again."""
    rows, columns = matrix.shape
    return tf.reshape(tf.transpose(tf.reshape(matrix, (1, rows, columns)), (0, 2, 1)), (columns, rows))


Column: TypeAlias = list[tf.Tensor] | tf.Tensor
"""One tensor a time step: a list from an unrolled loop, stacked on axis 0 from a `tf.while_loop`."""


def stacked(column: Column) -> tf.Tensor:
    """The column as one tensor [T, ...]."""
    return tf.stack(column) if isinstance(column, list) else column


def time_loop(
    steps: int | tf.Tensor, unroll: bool, step: Callable, carry: Carry, first: list[tf.Tensor], like: list[tuple]
) -> tuple[Carry, list[Column]]:
    """Run `step(n, carry) -> (carry, outputs)` for n = 0 to steps - 1 and collect each of the outputs.

    The columns of the first outputs begin with the tensors `first`, one each, and so are one longer than the others.
    `like` gives (dtype, static shape) of every output.
    """
    if unroll:
        columns: list[list[tf.Tensor]] = [[v] for v in first] + [[] for _ in like[len(first) :]]
        for n in range(steps):
            carry, outputs = step(n, carry)
            for column, output in zip(columns, outputs, strict=True):
                column.append(output)
        return carry, columns
    ahead = [1] * len(first) + [0] * (len(like) - len(first))
    arrays = [tf.TensorArray(d, steps + a, element_shape=s) for a, (d, s) in zip(ahead, like, strict=True)]
    arrays[: len(first)] = [array.write(0, v) for array, v in zip(arrays, first, strict=False)]

    def body(n: tf.Tensor, carry: Carry, arrays: list[tf.TensorArray]) -> tuple:
        carry, outputs = step(n, carry)
        return n + 1, carry, [a.write(n + k, v) for a, k, v in zip(arrays, ahead, outputs, strict=True)]

    _, carry, arrays = tf.while_loop(
        lambda n, *_: n < steps, body, (tf.constant(0), carry, arrays), parallel_iterations=1
    )
    return carry, [array.stack() for array in arrays]


def again_after(x: tf.Tensor, *upstream: tf.Tensor) -> tf.Tensor:
    """The tensor `x` once more, to compute with in the backward pass, when the gradients `upstream` are there.

    TensorFlow merges equal products of the forward and the backward pass, in spite of control dependencies, and then
    keeps their result in between. Here `x` begins at a number that depends on the gradients, and is always 0.
    """
    corner = tf.add_n([tf.cast(tf.reshape(u, (-1,))[0], tf.float32) for u in upstream])
    zero = tf.cast(tf.logical_and(tf.math.is_nan(corner), tf.math.is_inf(corner)), tf.int32)
    return x[zero:]
