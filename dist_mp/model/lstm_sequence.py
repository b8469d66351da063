"""The recurrence of an LSTM over a whole sequence, with its gradient written out.

Three things set it apart from a step-by-step layer. The input product is one product over all time steps, before the
loop. The weight gradients are one product each over all time steps, after the loop. Products and what is kept for the
backward pass are in the compute dtype, while gates and cell state are computed in float32.

Legend of shapes: T time steps, B rows, D input features, N cells. Sequences are time-major, so that a time step is a
contiguous slice. The gates stand in Keras's order: input, forget, cell candidate, output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from dist_mp.model.ops import column_sums

UNROLL_LIMIT = 40
"""Longest sequence (time steps) whose loop is unrolled by default: a longer one costs more to trace than it gains."""

Pair = tuple[tf.Tensor, tf.Tensor]


def exact_dtype(compute: tf.DType) -> tf.DType:
    """The dtype of gates and cell state: float32, or float64 where the products are."""
    return tf.float64 if compute == tf.float64 else tf.float32


@dataclass(frozen=True)
class _Gates:
    """Element-wise part of a time step, forward and backward, for one compute dtype."""

    compute: tf.DType
    exact: tf.DType

    def forward(self, x_gates: tf.Tensor, h_gates: tf.Tensor, bias: tf.Tensor, c: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """From the two products [B, 4N], the bias [4N] and the cell state [B, N]: h, c and the gates [B, 4N]."""
        sums = tf.cast(x_gates, self.exact) + tf.cast(h_gates, self.exact) + bias
        i, f, g, o = tf.split(sums, 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * c + i * g
        h = tf.cast(o * tf.tanh(c), self.compute)
        return h, c, tf.cast(tf.concat([i, f, g, o], axis=1), self.compute)

    def backward(self, gates: tf.Tensor, c_before: tf.Tensor, c: tf.Tensor, dh: tf.Tensor, dc: tf.Tensor) -> Pair:
        """The gradient of the sums [B, 4N] in the compute dtype and of the cell state before the step."""
        i, f, g, o = tf.split(tf.cast(gates, self.exact), 4, axis=1)
        tanh_c = tf.tanh(c)
        dc = dc + dh * o * (1.0 - tanh_c * tanh_c)
        d_sums = [
            dc * g * i * (1.0 - i),
            dc * c_before * f * (1.0 - f),
            dc * i * (1.0 - g * g),
            dh * tanh_c * o * (1.0 - o),
        ]
        return tf.cast(tf.concat(d_sums, axis=1), self.compute), dc * f


def _time_loop(
    steps: int | None, length: tf.Tensor, unroll: bool, reverse: bool, step: Callable, carry: Pair, shapes: list[tuple]
) -> tuple[Pair, list[tf.Tensor]]:
    """Run `step(t, carry) -> (carry, outputs)` over all time steps and stack each of the outputs on axis 0.

    `shapes` gives (dtype, static shape) of each output. `reverse` runs from the last step to the first; outputs are
    stacked in the order of time all the same.
    """
    if unroll:
        assert steps is not None
        outputs: list = [None] * steps
        for t in reversed(range(steps)) if reverse else range(steps):
            carry, outputs[t] = step(t, carry)
        return carry, [tf.stack(column) for column in zip(*outputs, strict=True)]
    arrays = [tf.TensorArray(dtype, length, element_shape=shape) for dtype, shape in shapes]

    def body(n: tf.Tensor, carry: Pair, arrays: list[tf.TensorArray]) -> tuple:
        t = length - 1 - n if reverse else n
        carry, values = step(t, carry)
        return n + 1, carry, [array.write(t, value) for array, value in zip(arrays, values, strict=True)]

    _, carry, arrays = tf.while_loop(
        lambda n, *_: n < length, body, (tf.constant(0), carry, arrays), parallel_iterations=1
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
    compute = x.dtype
    exact = exact_dtype(compute)
    steps = x.shape[0]
    if unroll is None:
        unroll = steps is not None and steps <= UNROLL_LIMIT
    gates = _Gates(compute, exact)
    cells = kernel.shape[1] // 4

    def scaled(h: tf.Tensor) -> tf.Tensor:
        return h if recurrent_scale is None else h * recurrent_scale

    @tf.custom_gradient
    def run(
        x: tf.Tensor, kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor, h0: tf.Tensor, c0: tf.Tensor
    ) -> tuple:
        length, rows = (tf.shape(x)[0], tf.shape(x)[1]) if None in x.shape[:2] else x.shape[:2]
        flat = tf.reshape(x, (length * rows, x.shape[2]))
        x_gates = tf.reshape(tf.matmul(flat, kernel), (length, rows, 4 * cells))
        x_steps = tf.unstack(x_gates) if unroll else x_gates
        masks = None if mask is None else (tf.unstack(mask[:, :, None]) if unroll else mask[:, :, None])
        exact_bias = tf.cast(bias, exact)

        def forward(t: tf.Tensor, carry: Pair) -> tuple:
            h, c = carry
            h_new, c_new, gate_values = gates.forward(x_steps[t], tf.matmul(scaled(h), recurrent), exact_bias, c)
            if masks is not None:
                h_new, c_new = tf.where(masks[t], h_new, h), tf.where(masks[t], c_new, c)
            return (h_new, c_new), (h_new, c_new, gate_values)

        shapes = [(compute, h0.shape), (exact, c0.shape), (compute, (h0.shape[0], 4 * cells))]
        (h_last, c_last), (h_all, c_all, gates_all) = _time_loop(
            steps, length, unroll, False, forward, (h0, c0), shapes
        )

        def gradient(dh_all: tf.Tensor, dh_last: tf.Tensor, dc_last: tf.Tensor) -> tuple:
            dh_steps, c_steps, gate_steps = (tf.unstack(v) if unroll else v for v in (dh_all, c_all, gates_all))
            c_before_all = tf.concat([c0[None], c_all[:-1]], axis=0)
            c_before = tf.unstack(c_before_all) if unroll else c_before_all

            def backward(t: tf.Tensor, carry: Pair) -> tuple:
                dh, dc = carry
                dh = dh + tf.cast(dh_steps[t], exact)
                d_sums, dc_before = gates.backward(gate_steps[t], c_before[t], c_steps[t], dh, dc)
                if masks is None:
                    dh_before = scaled(tf.matmul(d_sums, recurrent, transpose_b=True))
                    return (tf.cast(dh_before, exact), dc_before), (d_sums,)
                d_sums = tf.where(masks[t], d_sums, tf.zeros_like(d_sums))
                dh_before = scaled(tf.matmul(d_sums, recurrent, transpose_b=True))
                dh_before = tf.where(masks[t], tf.cast(dh_before, exact), dh)
                return (dh_before, tf.where(masks[t], dc_before, dc)), (d_sums,)

            (dh0, dc0), (d_sums_all,) = _time_loop(
                steps, length, unroll, True, backward, (tf.cast(dh_last, exact), dc_last), shapes[2:]
            )
            d_sums_all = tf.reshape(d_sums_all, (length * rows, 4 * cells))
            h_before = scaled(tf.concat([h0[None], h_all[:-1]], axis=0))
            h_before = tf.reshape(h_before, (length * rows, cells))
            dx = tf.reshape(tf.matmul(d_sums_all, kernel, transpose_b=True), tf.shape(x))
            d_kernel = tf.matmul(flat, d_sums_all, transpose_a=True)
            d_recurrent = tf.matmul(h_before, d_sums_all, transpose_a=True)
            d_bias = column_sums(d_sums_all)
            return dx, d_kernel, d_recurrent, d_bias, tf.cast(dh0, compute), dc0

        return (h_all, h_last, c_last), gradient

    return run(x, kernel, recurrent, bias, h0, c0)
