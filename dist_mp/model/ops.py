"""Operations that keep a 16-bit model's sums in float32: embedding, dense, convolution, dropout, softmax losses.

A sum over many rows in 16 bits stops growing (float16: 2048 + 1 = 2048) or overflows (65504). Forward products
accumulate in float32 inside the matrix product; the gradients that TensorFlow would sum in the variable's dtype, those
of an embedding and of a bias, are written out here.
"""

from __future__ import annotations

import tensorflow as tf


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


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, object]:
    """Sum of x [..., N] and bias [N]; the bias's gradient is accumulated in float32 and rounded once."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return upstream, column_sums(tf.reshape(upstream, (-1, bias.shape[0])))

    return tf.nn.bias_add(x, bias), gradient


def conv2d(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Convolution of x [R, H, W, C] by kernel [K, K, C, N], zeros around, stride 1: [R, H, W, N].

    On a CPU TensorFlow has no 16-bit convolution that accumulates in float32 on every processor: there it is computed
    in float32 from the 16-bit numbers and rounded once, its gradients too.
    """
    if x.dtype in (tf.float32, tf.float64) or tf.config.list_physical_devices("GPU"):
        return tf.nn.conv2d(x, kernel, 1, "SAME")
    wide = tf.nn.conv2d(tf.cast(x, tf.float32), tf.cast(kernel, tf.float32), 1, "SAME")
    return tf.cast(wide, x.dtype)


def conv1d(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, stride: int = 1) -> tf.Tensor:
    """Valid convolution of x [R, L, C] by kernel [K, C, N] and bias [N]: [R, (L - K) // stride + 1, N].

    It is one matrix product over all windows: for the few channels of a profile this is faster on a CPU than a
    convolution, and it sums the bias's gradient over all positions in float32.
    """
    width, channels, filters = kernel.shape
    length = (x.shape[1] - width) // stride + 1
    parts = [x[:, k : k + (length - 1) * stride + 1 : stride] for k in range(width)]
    windows = tf.concat(parts, axis=2) if width > 1 else parts[0]
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


@tf.function(jit_compile=True, autograph=False)
def _log_normalizers(logits: tf.Tensor) -> tf.Tensor:
    """The logarithm of the sum of the exponentials of each row, in float32."""
    return tf.reduce_logsumexp(tf.cast(logits, tf.float32), axis=1)


@tf.function(jit_compile=True, autograph=False)
def _softmax_errors(logits: tf.Tensor, normalizers: tf.Tensor, targets: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """(softmax - one-hot target) times `upstream` of the row, computed in float32 and rounded once."""
    probability = tf.exp(tf.cast(logits, tf.float32) - normalizers[:, None])
    chosen = tf.range(logits.shape[1], dtype=targets.dtype)[None] == targets[:, None]
    return tf.cast((probability - tf.cast(chosen, tf.float32)) * upstream[:, None], logits.dtype)


def softmax_losses(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Cross-entropy in nats of softmax(logits [R, V]) against the words `targets` (int [R]): float32 [R].

    Softmax, sums and loss are float32 (Micikevicius et al. 2018, section 3.3), but neither logits nor probabilities
    are ever held in float32 as a whole: XLA makes each of the passes over the logits one loop, in which a number is
    widened, used and dropped.
    """
    targets = tf.convert_to_tensor(targets)

    @tf.custom_gradient
    def run(logits: tf.Tensor) -> tuple[tf.Tensor, object]:
        normalizers = _log_normalizers(logits)
        chosen = tf.gather(logits, targets, axis=1, batch_dims=1)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _softmax_errors(logits, normalizers, targets, upstream)

        return normalizers - tf.cast(chosen, tf.float32), gradient

    return run(logits)
