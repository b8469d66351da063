"""Operations that keep a 16-bit model's sums in float32: embedding, dense, convolution, dropout, softmax losses.

A sum over many rows in 16 bits stops growing (float16: 2048 + 1 = 2048) or overflows (65504). Forward products
accumulate in float32 inside the matrix product; the gradients that TensorFlow would sum in the variable's dtype, those
of an embedding and of a bias, are written out here.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

BLOCK_NUMBERS = 1 << 20
"""Logits that `softmax_losses` holds in float32 at a time: 4 MiB."""


def column_sums(x: tf.Tensor) -> tf.Tensor:
    """Sum over the rows of x [R, N], accumulated in float32 and rounded once to the dtype of x: [N].

    A product with a row of ones does this without a float32 copy of x: matrix products accumulate in float32.
    """
    ones = tf.ones((1, tf.shape(x)[0]), x.dtype)
    return tf.reshape(tf.matmul(ones, x), (x.shape[1],))


@tf.custom_gradient
def embed(table: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, object]:
    """Rows of `table` [V, N] for `words` (int, any shape): [..., N].

    The gradient is dense, [V, N] in the table's dtype, whatever the words: its size does not grow with the rows or
    with the ranks. A word's rows are summed in float32 and rounded once.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        exact = tf.float64 if table.dtype == tf.float64 else tf.float32
        rows = tf.cast(tf.reshape(upstream, (-1, table.shape[1])), exact)
        sums = tf.math.unsorted_segment_sum(rows, tf.reshape(words, (-1,)), table.shape[0])
        return tf.cast(sums, table.dtype), None

    return tf.gather(table, words), gradient


@tf.custom_gradient
def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, object]:
    """The affine map of x [R, D] by kernel [D, N] and bias [N]: [R, N], all of one dtype.

    The bias's gradient is accumulated in float32 and rounded once.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        d_x = tf.matmul(upstream, kernel, transpose_b=True)
        return d_x, tf.matmul(x, upstream, transpose_a=True), column_sums(upstream)

    return tf.nn.bias_add(tf.matmul(x, kernel), bias), gradient


def conv1d(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Valid convolution of x [R, L, C] by kernel [K, C, N] and bias [N], stride 1: [R, L - K + 1, N].

    It is one matrix product over all windows: for the few channels of a profile this is faster on a CPU than a
    convolution, and it sums the bias's gradient over all positions in float32.
    """
    width, channels, filters = kernel.shape
    length = x.shape[1] - width + 1
    windows = tf.concat([x[:, k : k + length] for k in range(width)], axis=2) if width > 1 else x
    rows = tf.reshape(windows, (-1, width * channels))
    return tf.reshape(dense(rows, tf.reshape(kernel, (-1, filters)), bias), (-1, length, filters))


def max_pool(x: tf.Tensor) -> tf.Tensor:
    """Maximum of each two neighbours of x [R, L, C]: [R, L // 2, C]."""
    pairs = x.shape[1] // 2
    split = tf.reshape(x[:, : 2 * pairs], (-1, pairs, 2, x.shape[2]))
    return tf.maximum(split[:, :, 0], split[:, :, 1])


def stateless_dropout(x: tf.Tensor, rate: float, seed: tf.Tensor, salt: int) -> tf.Tensor:
    """Zero each number of x with probability `rate` and divide the others by 1 - rate.

    Which ones is a pure function of the shape, of `seed` (int32 [2]) and of `salt`, a number that tells the dropout
    layers of a model apart.
    """
    if rate == 0.0:
        return x
    uniform = tf.random.stateless_uniform(tf.shape(x), tf.random.experimental.stateless_fold_in(seed, salt))
    return tf.where(uniform >= rate, x * tf.cast(1.0 / (1.0 - rate), x.dtype), tf.zeros((), x.dtype))


@tf.autograph.experimental.do_not_convert
def softmax_losses(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Cross-entropy in nats of softmax(logits [R, V]) against the words `targets` (int [R]): float32 [R].

    Softmax and loss run in float32 over blocks of rows, forward and backward, so that logits and their gradient are
    held as a whole only in their own dtype (Micikevicius et al. 2018, section 3.3: reductions in float32).
    """
    words, targets = logits.shape[1], tf.convert_to_tensor(targets)
    block = max(1, BLOCK_NUMBERS // words)

    @tf.custom_gradient
    def run(logits: tf.Tensor) -> tuple[tf.Tensor, object]:
        rows = tf.shape(logits)[0]
        blocks = (rows + block - 1) // block

        def in_blocks(step: Callable[[slice], tf.Tensor], dtype: tf.DType, shape: tuple) -> tf.Tensor:
            array = tf.TensorArray(dtype, blocks, element_shape=shape, infer_shape=False)

            def body(n: tf.Tensor, array: tf.TensorArray) -> tuple:
                part = slice(n * block, tf.minimum((n + 1) * block, rows))
                return n + 1, array.write(n, step(part))

            _, array = tf.while_loop(lambda n, _: n < blocks, body, (tf.constant(0), array), parallel_iterations=1)
            return array.concat()

        normalizer = in_blocks(
            lambda part: tf.reduce_logsumexp(tf.cast(logits[part], tf.float32), axis=1), tf.float32, (None,)
        )
        chosen = tf.gather(logits, targets, axis=1, batch_dims=1)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            def step(part: slice) -> tf.Tensor:
                probability = tf.exp(tf.cast(logits[part], tf.float32) - normalizer[part, None])
                error = probability - tf.one_hot(targets[part], words)
                return tf.cast(error * upstream[part, None], logits.dtype)

            return tf.ensure_shape(in_blocks(step, logits.dtype, (None, words)), logits.shape)

        return normalizer - tf.cast(chosen, tf.float32), gradient

    return run(logits)
