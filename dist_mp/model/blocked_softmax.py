"""Output layer and cross-entropy over blocks of the vocabulary: the logits of one block exist at a time.

Softmax and loss are float32 (Micikevicius et al. 2018, section 3.3). The gradient computes each block's logits again,
which costs one product more than keeping them (four in place of three) and saves B * T * V numbers twice: the logits
and their gradient. Legend of shapes: R rows (B * T), N cells, V words.
"""

from __future__ import annotations

import tensorflow as tf

from dist_mp.model.ops import column_sums
from dist_mp.model.time_loop import exact_dtype


@tf.function(jit_compile=True, autograph=False)
def _absorb(
    logits: tf.Tensor, first: tf.Tensor, targets: tf.Tensor, largest: tf.Tensor, total: tf.Tensor, chosen: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Take a block of logits that begins at word `first` into the running maximum, sum and chosen logit, all [R]."""
    wide = tf.cast(logits, total.dtype)
    larger = tf.maximum(largest, tf.reduce_max(wide, axis=1))
    total = total * tf.exp(largest - larger) + tf.reduce_sum(tf.exp(wide - larger[:, None]), axis=1)
    here = tf.range(logits.shape[1], dtype=tf.int32)[None] + first == targets[:, None]
    return larger, total, chosen + tf.reduce_sum(tf.where(here, wide, tf.zeros_like(wide)), axis=1)


@tf.function(jit_compile=True, autograph=False)
def _errors(
    logits: tf.Tensor, first: tf.Tensor, targets: tf.Tensor, normalizers: tf.Tensor, upstream: tf.Tensor
) -> tf.Tensor:
    """(softmax - one-hot target) times `upstream` of the row, for the words of a block, rounded once."""
    probability = tf.exp(tf.cast(logits, normalizers.dtype) - normalizers[:, None])
    here = tf.range(logits.shape[1], dtype=tf.int32)[None] + first == targets[:, None]
    return tf.cast((probability - tf.cast(here, probability.dtype)) * upstream[:, None], logits.dtype)


@tf.autograph.experimental.do_not_convert
def blocked_softmax_losses(
    h: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, targets: tf.Tensor, block: int
) -> tf.Tensor:
    """Cross-entropy in nats of softmax(h kernel + bias) against `targets`.

    Args:
        h: inputs of the output layer [R, N] in the compute dtype.
        kernel: [N, V], likewise.
        bias: [V], likewise.
        targets: words, int [R].
        block: words whose logits exist at a time.

    Returns:
        Losses [R], float32 (float64 where the products are). The gradients of h, kernel and bias come in the compute
        dtype; that of h is summed over the blocks in float32 and rounded once.
    """
    words, exact = kernel.shape[1], exact_dtype(h.dtype)
    targets = tf.cast(targets, tf.int32)
    bounds = [(first, min(first + block, words)) for first in range(0, words, block)]

    @tf.custom_gradient
    def run(h: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple:
        def logits_of(first: int, end: int, after: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # One block after the other: without the dependency TensorFlow may hold the logits of all at once.
            with tf.control_dependencies([after]):
                part = kernel[:, first:end]
                return tf.nn.bias_add(tf.matmul(h, part), bias[first:end]), part

        rows = tf.shape(h)[:1]
        largest, total, chosen = tf.fill(rows, exact.min), tf.zeros(rows, exact), tf.zeros(rows, exact)
        for first, end in bounds:
            logits, _ = logits_of(first, end, largest)
            largest, total, chosen = _absorb(logits, first, targets, largest, total, chosen)
        normalizers = largest + tf.math.log(total)

        def gradient(upstream: tf.Tensor) -> tuple:
            d_h, d_kernel, d_bias = tf.zeros(tf.shape(h), exact), [], []
            after = upstream
            for first, end in bounds:
                logits, part = logits_of(first, end, after)
                errors = _errors(logits, first, targets, normalizers, upstream)
                d_h += tf.cast(tf.matmul(errors, part, transpose_b=True), exact)
                d_kernel.append(tf.matmul(h, errors, transpose_a=True))
                d_bias.append(column_sums(errors))
                with tf.control_dependencies([d_h, d_kernel[-1], d_bias[-1]]):
                    after = tf.identity(upstream[:1])
            return tf.cast(d_h, h.dtype), tf.concat(d_kernel, axis=1), tf.concat(d_bias, axis=0)

        return normalizers - chosen, gradient

    return run(h, kernel, bias)
