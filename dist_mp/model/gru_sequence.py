"""The recurrence of a GRU over a whole sequence, with its gradient written out; see :mod:`dist_mp.model.lstm_sequence`.

The form is Keras's `reset_after`, which is cuDNN's too: the reset gate acts on the recurrent product. The gates stand
in Keras's order: update z, reset r, candidate. Legend of shapes: T time steps, B rows, D input features, N cells.
"""

from __future__ import annotations

import tensorflow as tf

from dist_mp.model.ops import column_sums
from dist_mp.model.time_loop import UNROLL_LIMIT, again_after, stacked, time_loop, transposed


@tf.function(jit_compile=True, autograph=False)
def _gates_forward(
    x_gates: tf.Tensor, h_gates: tf.Tensor, bias: tf.Tensor, h: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """From the two products [B, 3N], the biases [2, 3N] and the state [B, N]: the new state and what backward needs.

    That is z, r, the candidate and its recurrent sum, side by side [B, 4N], rounded to the dtype of the products.
    """
    compute, exact = x_gates.dtype, h.dtype
    bias = tf.cast(bias, exact)
    x_z, x_r, x_c = tf.split(tf.cast(x_gates, exact) + bias[0], 3, axis=1)
    h_z, h_r, h_c = tf.split(tf.cast(h_gates, exact) + bias[1], 3, axis=1)
    z, r = tf.sigmoid(x_z + h_z), tf.sigmoid(x_r + h_r)
    candidate = tf.tanh(x_c + r * h_c)
    return z * h + (1.0 - z) * candidate, tf.cast(tf.concat([z, r, candidate, h_c], axis=1), compute)


@tf.function(jit_compile=True, autograph=False)
def _gates_backward(gates: tf.Tensor, h_before: tf.Tensor, dh: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of the input sums and of the recurrent sums, both [B, 3N], and dh's direct way to the step before."""
    compute = gates.dtype
    z, r, candidate, h_c = tf.split(tf.cast(gates, dh.dtype), 4, axis=1)
    d_z = dh * (h_before - candidate) * z * (1.0 - z)
    d_c = dh * (1.0 - z) * (1.0 - candidate * candidate)
    d_r = d_c * h_c * r * (1.0 - r)
    x_sums, h_sums = tf.concat([d_z, d_r, d_c], axis=1), tf.concat([d_z, d_r, d_c * r], axis=1)
    return tf.cast(x_sums, compute), tf.cast(h_sums, compute), dh * z


@tf.autograph.experimental.do_not_convert
def gru_sequence(
    x: tf.Tensor,
    kernel: tf.Tensor,
    recurrent: tf.Tensor,
    bias: tf.Tensor,
    h0: tf.Tensor,
    mask: tf.Tensor | None = None,
    recurrent_scale: tf.Tensor | None = None,
    *,
    unroll: bool | None = None,
    recompute: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run a GRU over a sequence.

    Args:
        x: inputs [T, B, D]; their dtype is the compute dtype (float16, bfloat16, float32 or float64).
        kernel: weights of the inputs [D, 3N] in the compute dtype, gates in the order z, r, candidate.
        recurrent: weights of h [N, 3N], likewise.
        bias: [2, 3N], of the input sums and of the recurrent sums, likewise.
        h0: state before the first step [B, N], float32 (float64 if that is the compute dtype).
        mask: bool [T, B] or None; at a false step the state is carried over unchanged.
        recurrent_scale: [B, N] in the compute dtype or None: factor on h before the recurrent product at every step
            (recurrent dropout); it gets no gradient.
        unroll: unroll the time loop, which needs a static T; None unrolls up to `UNROLL_LIMIT` steps.
        recompute: compute the gates again in the backward pass, to the same bits, in place of keeping them.

    Returns:
        h at every step [T, B, N] in the compute dtype, and the state after the last step [B, N] in the dtype of `h0`:
        the state is carried in float32, as small updates to a 16-bit state would be lost.

    Gradients come in the dtype of each argument; the biases' are summed in float32. There is no second derivative.
    """
    compute, exact = x.dtype, h0.dtype
    cells = kernel.shape[1] // 3
    if unroll is None:
        unroll = x.shape[0] is not None and x.shape[0] <= UNROLL_LIMIT

    def for_product(h: tf.Tensor) -> tf.Tensor:
        rounded = tf.cast(h, compute)
        return rounded if recurrent_scale is None else rounded * recurrent_scale

    @tf.custom_gradient
    def run(x: tf.Tensor, kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor, h0: tf.Tensor) -> tuple:
        steps, rows = (static or tf.shape(x)[k] for k, static in enumerate(x.shape[:2]))
        flat = tf.reshape(x, (steps * rows, x.shape[2]))
        x_gates = tf.reshape(tf.matmul(flat, kernel), (steps, rows, 3 * cells))
        valid = None if mask is None else (tf.unstack(mask[:, :, None]) if unroll else mask[:, :, None])
        like = [(exact, h0.shape), (compute, (h0.shape[0], 4 * cells))]

        def forward(t: int | tf.Tensor, carry: tuple[tf.Tensor]) -> tuple:
            (h,) = carry
            h_new, gates = _gates_forward(x_gates[t], tf.matmul(for_product(h), recurrent), bias, h)
            if valid is not None:
                h_new = tf.where(valid[t], h_new, h)
            return (h_new,), (h_new,) if recompute else (h_new, gates)

        kept = like[:1] if recompute else like
        (h_last,), (h, *gates) = time_loop(steps, unroll, forward, (h0,), [h0], kept)

        def gradient(dh_all: tf.Tensor, dh_last: tf.Tensor) -> tuple:
            # oneDNN is slow where the second factor is transposed, by a third in float32 and fourfold in float16.
            in_advance = compute != tf.bfloat16
            back = transposed(recurrent) if in_advance else recurrent
            if recompute:
                again = tf.matmul(again_after(flat, dh_all, dh_last), kernel)
                h_again = again_after(stacked(h), dh_all, dh_last)
                again = tf.reshape(again, (steps, rows, 3 * cells))

            def gates_of(t: int | tf.Tensor, after: tf.Tensor) -> tf.Tensor:
                if not recompute:
                    return gates[0][t]
                # One step after the other: all at once they would take the memory that is to be saved.
                with tf.control_dependencies([after]):
                    h_gates = tf.matmul(for_product(h_again[t]), recurrent)
                    return _gates_forward(again[t], h_gates, bias, h[t])[1]

            def backward(n: int | tf.Tensor, carry: tuple[tf.Tensor]) -> tuple:
                t = steps - 1 - n
                dh = carry[0] + tf.cast(dh_all[t], exact)
                x_sums, h_sums, direct = _gates_backward(gates_of(t, carry[0]), h[t], dh)
                if valid is not None:
                    x_sums, h_sums = (tf.where(valid[t], d, tf.zeros_like(d)) for d in (x_sums, h_sums))
                through = tf.matmul(h_sums, back, transpose_b=not in_advance)
                through = through if recurrent_scale is None else through * recurrent_scale
                dh_before = direct + tf.cast(through, exact)
                if valid is not None:
                    dh_before = tf.where(valid[t], dh_before, dh)
                return (dh_before,), (x_sums, h_sums)

            like_sums = [(compute, (h0.shape[0], 3 * cells))] * 2
            (dh0,), columns = time_loop(steps, unroll, backward, (dh_last,), [], like_sums)
            x_sums, h_sums = (
                tf.reshape(tf.stack(d[::-1]) if unroll else tf.reverse(d, [0]), (steps * rows, 3 * cells))
                for d in columns
            )
            h_before = tf.reshape(tf.cast(stacked(h)[:-1], compute), (steps, rows, cells))
            h_before = h_before if recurrent_scale is None else h_before * recurrent_scale
            dx = tf.reshape(tf.matmul(x_sums, kernel, transpose_b=True), tf.shape(x))
            d_kernel = tf.matmul(flat, x_sums, transpose_a=True)
            d_recurrent = tf.matmul(tf.reshape(h_before, (steps * rows, cells)), h_sums, transpose_a=True)
            d_bias = tf.stack([column_sums(x_sums), column_sums(h_sums)])
            # What the layer below waits for comes last: else its backward pass begins while the sums are still held.
            with tf.control_dependencies([d_kernel, d_recurrent, d_bias]):
                dx = tf.identity(dx)
            return dx, d_kernel, d_recurrent, d_bias, dh0

        return (tf.cast(stacked(h)[1:], compute), h_last), gradient

    return run(x, kernel, recurrent, bias, h0)
