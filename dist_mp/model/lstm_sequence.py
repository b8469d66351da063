"""The recurrence of an LSTM over a whole sequence, with its gradient written out.

Three things set it apart from a step-by-step layer. The input product is one product over all time steps, before the
loop. The weight gradients are one product each over all time steps, after the loop. Products and what is kept for the
backward pass are in the compute dtype, while gates and cell state are computed in float32.

Legend of shapes: T time steps, B rows, D input features, N cells, P width of h: N, or that of the projection (Sak,
Senior and Beaufays 2014, arXiv 1402.1128). Sequences are time-major, so that a time step is a contiguous slice. The
gates stand in Keras's order: input, forget, cell candidate, output.
"""

from __future__ import annotations

from typing import TypeAlias

import tensorflow as tf

from dist_mp.model.ops import column_sums
from dist_mp.model.time_loop import UNROLL_LIMIT, Column, again_after, stacked, time_loop, transposed

Pair: TypeAlias = tuple[tf.Tensor, tf.Tensor]


@tf.function(jit_compile=True, autograph=False)
def _gates_forward(
    x_gates: tf.Tensor, h_gates: tf.Tensor, bias: tf.Tensor, c: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """From the two products [B, 4N], the bias [4N] and the cell state [B, N]: output, c and the gates [B, 4N].

    Computed in the dtype of `c`; the output [B, N], which is h where there is no projection, and the gates are rounded
    to that of the products. XLA makes one loop of it.
    """
    compute, exact = x_gates.dtype, c.dtype
    sums = tf.cast(x_gates, exact) + tf.cast(h_gates, exact) + tf.cast(bias, exact)
    i, f, g, o = tf.split(sums, 4, axis=1)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    c = f * c + i * g
    output = tf.cast(o * tf.tanh(c), compute)
    return output, c, tf.cast(tf.concat([i, f, g, o], axis=1), compute)


@tf.function(jit_compile=True, autograph=False)
def _gates_backward(gates: tf.Tensor, c_before: tf.Tensor, c: tf.Tensor, d_out: tf.Tensor, dc: tf.Tensor) -> Pair:
    """The gradient of the sums [B, 4N] in the dtype of `gates`, and that of the cell state before the step.

    `d_out` and `dc` are the gradients of the output and of the cell state after the step, in the dtype of `c`.
    """
    compute, exact = gates.dtype, c.dtype
    i, f, g, o = tf.split(tf.cast(gates, exact), 4, axis=1)
    tanh_c = tf.tanh(c)
    dc = dc + d_out * o * (1.0 - tanh_c * tanh_c)
    d_i, d_f = dc * g * i * (1.0 - i), dc * c_before * f * (1.0 - f)
    d_g, d_o = dc * i * (1.0 - g * g), d_out * tanh_c * o * (1.0 - o)
    return tf.cast(tf.concat([d_i, d_f, d_g, d_o], axis=1), compute), dc * f


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
    projection: tf.Tensor | None = None,
    *,
    unroll: bool | None = None,
    recompute: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Run an LSTM over a sequence.

    Args:
        x: inputs [T, B, D]; their dtype is the compute dtype (float16, bfloat16, float32 or float64).
        kernel: weights of the inputs [D, 4N] in the compute dtype, gates in the order i, f, c, o.
        recurrent: weights of h [P, 4N], likewise.
        bias: [4N], likewise.
        h0: h before the first step [B, P] in the compute dtype.
        c0: cell state before the first step [B, N], float32 (float64 if that is the compute dtype).
        mask: bool [T, B] or None; at a false step the state is carried over unchanged.
        recurrent_scale: [B, P] in the compute dtype or None: factor on h before the recurrent product at every step
            (recurrent dropout); it gets no gradient.
        projection: [N, P] in the compute dtype or None: h is the product of the output o * tanh(c) with it.
        unroll: unroll the time loop, which needs a static T; None unrolls up to `UNROLL_LIMIT` steps.
        recompute: keep h and c of every step for the backward pass, but not the gates (4N of the 14 bytes per cell
            and step in 16 bits are 8), and compute these again there, to the same bits, for the time of the input and
            recurrent products.

    Returns:
        h at every step [T, B, P] and after the last [B, P], both in the compute dtype; the cell state after the last
        step [B, N] in the dtype of `c0`.

    The gradients come in the compute dtype, that of c0 in its own. The bias's is summed in float32 and rounded once,
    the others' products accumulate in float32. There is no second derivative.
    """
    compute, exact = x.dtype, c0.dtype
    cells = kernel.shape[1] // 4
    if unroll is None:
        unroll = x.shape[0] is not None and x.shape[0] <= UNROLL_LIMIT

    def scaled(h: tf.Tensor) -> tf.Tensor:
        return h if recurrent_scale is None else h * recurrent_scale

    @tf.custom_gradient
    def run(
        x: tf.Tensor,
        kernel: tf.Tensor,
        recurrent: tf.Tensor,
        bias: tf.Tensor,
        h0: tf.Tensor,
        c0: tf.Tensor,
        *projections: tf.Tensor,
    ) -> tuple:
        steps, rows = (static or tf.shape(x)[k] for k, static in enumerate(x.shape[:2]))
        flat = tf.reshape(x, (steps * rows, x.shape[2]))
        x_gates = tf.reshape(tf.matmul(flat, kernel), (steps, rows, 4 * cells))
        valid = None if mask is None else (tf.unstack(mask[:, :, None]) if unroll else mask[:, :, None])
        wide, sums = (h0.shape[0], cells), (h0.shape[0], 4 * cells)
        kept = [(compute, h0.shape), (exact, c0.shape)]
        if not recompute:
            kept += [(compute, sums), *((compute, wide) for _ in projections)]

        def forward(t: int | tf.Tensor, carry: Pair) -> tuple:
            h, c = carry
            output, c_new, gates = _gates_forward(x_gates[t], tf.matmul(scaled(h), recurrent), bias, c)
            h_new = tf.matmul(output, projections[0]) if projections else output
            if valid is not None:
                h_new, c_new = tf.where(valid[t], h_new, h), tf.where(valid[t], c_new, c)
            return (h_new, c_new), (h_new, c_new, gates, output)[: len(kept)]

        (h_last, c_last), (h, c, *others) = time_loop(steps, unroll, forward, (h0, c0), [h0, c0], kept)
        h = stacked(h)  # [T + 1, B, P], from h0 on

        def gradient(dh_all: tf.Tensor, dh_last: tf.Tensor, dc_last: tf.Tensor) -> tuple:
            # oneDNN is slow where the second factor is transposed, by a third in float32 and fourfold in float16.
            in_advance = compute != tf.bfloat16
            back, *out_back = (transposed(w) if in_advance else w for w in (recurrent, *projections))
            if recompute:
                again = tf.matmul(again_after(flat, dh_all, dh_last, dc_last), kernel)
                h_again = again_after(h, dh_all, dh_last, dc_last)
                again = tf.reshape(again, (steps, rows, 4 * cells))

            def gates_of(t: int | tf.Tensor, after: tf.Tensor) -> list[tf.Tensor]:
                """The gates of a step, and its output where that is projected."""
                if not recompute:
                    return [other[t] for other in others]
                # One step after the other: all at once they would take the memory that is to be saved.
                with tf.control_dependencies([after]):
                    h_gates = tf.matmul(scaled(h_again[t]), recurrent)
                    output, _, gates = _gates_forward(again[t], h_gates, bias, c[t])
                return [gates, output][: 1 + len(projections)]

            def backward(n: int | tf.Tensor, carry: Pair) -> tuple:
                t = steps - 1 - n
                dh, dc = carry
                dh = dh + tf.cast(dh_all[t], exact)
                gates, *outputs = gates_of(t, dc)
                d_out, columns = dh, []
                if projections:
                    d_h = tf.cast(dh, compute)
                    d_h = d_h if valid is None else tf.where(valid[t], d_h, tf.zeros_like(d_h))
                    d_out = tf.cast(tf.matmul(d_h, out_back[0], transpose_b=not in_advance), exact)
                    columns = [d_h, *outputs]
                d_sums, dc_before = _gates_backward(gates, c[t], c[t + 1], d_out, dc)
                if valid is not None:
                    d_sums = tf.where(valid[t], d_sums, tf.zeros_like(d_sums))
                dh_before = tf.cast(scaled(tf.matmul(d_sums, back, transpose_b=not in_advance)), exact)
                if valid is not None:
                    dh_before, dc_before = tf.where(valid[t], dh_before, dh), tf.where(valid[t], dc_before, dc)
                return (dh_before, dc_before), (d_sums, *columns)

            def in_order(column: Column) -> tf.Tensor:
                column = tf.stack(column[::-1]) if isinstance(column, list) else tf.reverse(column, [0])
                return tf.reshape(column, (steps * rows, column.shape[2]))

            start = (tf.cast(dh_last, exact), dc_last)
            like = [(compute, sums), *([(compute, h0.shape), (compute, wide)] if projections else [])]
            (dh0, dc0), columns = time_loop(steps, unroll, backward, start, [], like)
            d_sums, *factors = (in_order(column) for column in columns)
            h_before = tf.reshape(scaled(h[:-1]), (steps * rows, h.shape[2]))
            dx = tf.reshape(tf.matmul(d_sums, kernel, transpose_b=True), tf.shape(x))
            d_kernel = tf.matmul(flat, d_sums, transpose_a=True)
            d_recurrent = tf.matmul(h_before, d_sums, transpose_a=True)
            d_weights = [d_kernel, d_recurrent, column_sums(d_sums)]
            d_projections = [tf.matmul(factors[1], factors[0], transpose_a=True)] if projections else []
            # What the layer below waits for comes last: else its backward pass begins while d_sums is still held.
            with tf.control_dependencies([*d_weights, *d_projections]):
                dx = tf.identity(dx)
            return dx, *d_weights, tf.cast(dh0, compute), dc0, *d_projections

        return (h[1:], h_last, c_last), gradient

    return run(x, kernel, recurrent, bias, h0, c0, *([] if projection is None else [projection]))
