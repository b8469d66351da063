"""The recurrence of an LSTM over a whole sequence, with its gradient written out.

Three things set it apart from a step-by-step layer. The input product is one product over all time steps, before the
loop. The weight gradients are one product each over all time steps, after the loop. Products and what is kept for the
backward pass are in the compute dtype, while gates and cell state are computed in float32.

Legend of shapes: T time steps, B rows, D input features, N cells. Sequences are time-major, so that a time step is a
contiguous slice. The gates stand in Keras's order: input, forget, cell candidate, output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from dist_mp.model.ops import column_sums

UNROLL_LIMIT = 40
"""Longest sequence (time steps) whose loop is unrolled by default: a longer one costs more to trace than it gains."""

Pair: TypeAlias = tuple[tf.Tensor, tf.Tensor]


def exact_dtype(compute: tf.DType) -> tf.DType:
    """The dtype of gates and cell state: float32, or float64 where the products are."""
    return tf.float64 if compute == tf.float64 else tf.float32


@tf.function(jit_compile=True, autograph=False)
def _gates_forward(
    x_gates: tf.Tensor, h_gates: tf.Tensor, bias: tf.Tensor, c: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """From the two products [B, 4N], the bias [4N] and the cell state [B, N]: h, c and the gates [B, 4N].

    Computed in the dtype of `c`; h and the gates are rounded to that of the products. XLA makes one loop of it.
    """
    compute, exact = x_gates.dtype, c.dtype
    sums = tf.cast(x_gates, exact) + tf.cast(h_gates, exact) + tf.cast(bias, exact)
    i, f, g, o = tf.split(sums, 4, axis=1)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    c = f * c + i * g
    h = tf.cast(o * tf.tanh(c), compute)
    return h, c, tf.cast(tf.concat([i, f, g, o], axis=1), compute)


@tf.function(jit_compile=True, autograph=False)
def _gates_backward(gates: tf.Tensor, c_before: tf.Tensor, c: tf.Tensor, dh: tf.Tensor, dc: tf.Tensor) -> Pair:
    """The gradient of the sums [B, 4N] in the dtype of `gates`, and that of the cell state before the step."""
    compute, exact = gates.dtype, c.dtype
    i, f, g, o = tf.split(tf.cast(gates, exact), 4, axis=1)
    tanh_c = tf.tanh(c)
    dc = dc + dh * o * (1.0 - tanh_c * tanh_c)
    d_i, d_f = dc * g * i * (1.0 - i), dc * c_before * f * (1.0 - f)
    d_g, d_o = dc * i * (1.0 - g * g), dh * tanh_c * o * (1.0 - o)
    return tf.cast(tf.concat([d_i, d_f, d_g, d_o], axis=1), compute), dc * f


def _transposed(matrix: tf.Tensor) -> tf.Tensor:
    """The transpose as a matrix of its own: the reshapes keep TensorFlow from folding it into the products again."""
    rows, columns = matrix.shape
    return tf.reshape(tf.transpose(tf.reshape(matrix, (1, rows, columns)), (0, 2, 1)), (columns, rows))


Column: TypeAlias = list[tf.Tensor] | tf.Tensor
"""One tensor a time step: a list from an unrolled loop, stacked on axis 0 from a `tf.while_loop`."""


def _stacked(column: Column) -> tf.Tensor:
    return tf.stack(column) if isinstance(column, list) else column


def _time_loop(
    steps: int | tf.Tensor, unroll: bool, step: Callable, carry: Pair, first: list[tf.Tensor], like: list[tuple]
) -> tuple[Pair, list[Column]]:
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

    def body(n: tf.Tensor, carry: Pair, arrays: list[tf.TensorArray]) -> tuple:
        carry, outputs = step(n, carry)
        return n + 1, carry, [a.write(n + k, v) for a, k, v in zip(arrays, ahead, outputs, strict=True)]

    _, carry, arrays = tf.while_loop(
        lambda n, *_: n < steps, body, (tf.constant(0), carry, arrays), parallel_iterations=1
    )
    return carry, [array.stack() for array in arrays]


@tf.autograph.experimental.do_not_convert
def lstm_sequence(
    x: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    h0: tf.Tensor,
    c0: tf.Tensor,
    mask: tf.Tensor | None = None,
    recurrent_scale: tf.Tensor | None = None,
    *,
    unroll: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Run an LSTM over a sequence.

    Args:
        x: inputs [T, B, D]; their dtype is the compute dtype (float16, bfloat16, float32 or float64).
        kernel: weights of the inputs [D, 4N] in the compute dtype, gates in the order i, f, c, o.
        recurrent: weights of h [N, 4N], likewise.
        bias: [4N], likewise.
        h0: h before the first step [B, N] in the compute dtype.
        c0: cell state before the first step [B, N], float32 (float64 if that is the compute dtype).
        mask: bool [T, B] or None; at a false step the state is carried over unchanged.
        recurrent_scale: [B, N] in the compute dtype or None: factor on h before the recurrent product at every step
            (recurrent dropout); it gets no gradient.
        unroll: unroll the time loop, which needs a static T; None unrolls up to `UNROLL_LIMIT` steps.

    Returns:
        h at every step [T, B, N] and after the last [B, N], both in the compute dtype; the cell state after the last
        step [B, N] in the dtype of `c0`.

    The gradients of x, kernel, recurrent, bias and h0 come in the compute dtype, that of c0 in its own; the bias's is
    summed in float32 and rounded once, the others' products accumulate in float32. There is no second derivative.
    """
    compute, exact = x.dtype, c0.dtype
    cells = kernel.shape[1] // 4
    if unroll is None:
        unroll = x.shape[0] is not None and x.shape[0] <= UNROLL_LIMIT

    def scaled(h: tf.Tensor) -> tf.Tensor:
        return h if recurrent_scale is None else h * recurrent_scale

    @tf.custom_gradient
    def run(
        x: tf.Tensor, kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor, h0: tf.Tensor, c0: tf.Tensor
    ) -> tuple:
        steps, rows = (static or tf.shape(x)[k] for k, static in enumerate(x.shape[:2]))
        flat = tf.reshape(x, (steps * rows, x.shape[2]))
        x_gates = tf.reshape(tf.matmul(flat, kernel), (steps, rows, 4 * cells))
        x_gates = tf.unstack(x_gates) if unroll else x_gates
        valid = None if mask is None else (tf.unstack(mask[:, :, None]) if unroll else mask[:, :, None])
        like = [(compute, h0.shape), (exact, c0.shape), (compute, (h0.shape[0], 4 * cells))]

        def forward(t: int | tf.Tensor, carry: Pair) -> tuple:
            h, c = carry
            h_new, c_new, gates = _gates_forward(x_gates[t], tf.matmul(scaled(h), recurrent), bias, c)
            if valid is not None:
                h_new, c_new = tf.where(valid[t], h_new, h), tf.where(valid[t], c_new, c)
            return (h_new, c_new), (h_new, c_new, gates)

        (h_last, c_last), (h, c, gates) = _time_loop(steps, unroll, forward, (h0, c0), [h0, c0], like)
        h = _stacked(h)  # [T + 1, B, N], from h0 on

        def gradient(dh_all: tf.Tensor, dh_last: tf.Tensor, dc_last: tf.Tensor) -> tuple:
            dh_steps = tf.unstack(dh_all) if unroll else dh_all
            # oneDNN is slow where the second factor is transposed, by a third in float32 and fourfold in float16.
            in_advance = compute != tf.bfloat16
            back = _transposed(recurrent) if in_advance else recurrent

            def backward(n: int | tf.Tensor, carry: Pair) -> tuple:
                t = steps - 1 - n
                dh, dc = carry
                dh = dh + tf.cast(dh_steps[t], exact)
                d_sums, dc_before = _gates_backward(gates[t], c[t], c[t + 1], dh, dc)
                if valid is not None:
                    d_sums = tf.where(valid[t], d_sums, tf.zeros_like(d_sums))
                dh_before = tf.cast(scaled(tf.matmul(d_sums, back, transpose_b=not in_advance)), exact)
                if valid is not None:
                    dh_before, dc_before = tf.where(valid[t], dh_before, dh), tf.where(valid[t], dc_before, dc)
                return (dh_before, dc_before), (d_sums,)

            start = (tf.cast(dh_last, exact), dc_last)
            (dh0, dc0), (d_sums,) = _time_loop(steps, unroll, backward, start, [], like[2:])
            d_sums = tf.reverse(d_sums, [0]) if not unroll else tf.stack(d_sums[::-1])
            d_sums = tf.reshape(d_sums, (steps * rows, 4 * cells))
            h_before = tf.reshape(scaled(h[:-1]), (steps * rows, cells))
            dx = tf.reshape(tf.matmul(d_sums, kernel, transpose_b=True), tf.shape(x))
            d_kernel = tf.matmul(flat, d_sums, transpose_a=True)
            d_recurrent = tf.matmul(h_before, d_sums, transpose_a=True)
            return dx, d_kernel, d_recurrent, column_sums(d_sums), tf.cast(dh0, compute), dc0

        return (h[1:], h_last, c_last), gradient

    return run(x, kernel, recurrent, bias, h0, c0)
