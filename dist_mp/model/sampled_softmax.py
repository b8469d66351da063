"""Cross-entropy over a sample of the vocabulary, for training with many words.

The target has to be told from S words drawn from a distribution Q: a softmax over these S + 1 words, the logit of each
lowered by the logarithm of how often Q gives it (Jean et al. 2015, arXiv 1412.2007; Jozefowicz et al. 2016, arXiv
1602.02410, section 3.1). Words are drawn with replacement, and a draw of the target stays in the sample: then the
minimum over all models is that of the full softmax for any S (Ma and Collins 2018, arXiv 1809.01812), and the gradient
nears the full one as S grows. Without the target's own correction the sum of the softmax would be estimated without
bias, but its logarithm too low, which training exploits: measured, docs/decisions.md.

Q falls as the words' ranks rise, so words must be numbered from the most frequent on, as
:class:`dist_mp.data.vocabulary.Vocabulary` does. Legend of shapes: R rows (B * T), N cells, V words, S samples.
"""

from __future__ import annotations

import math

import tensorflow as tf

from dist_mp.model.ops import embed
from dist_mp.model.time_loop import exact_dtype


def log_uniform_words(samples: int, words: int, seed: tf.Tensor) -> tf.Tensor:
    """Words drawn with Q(k) = log((k + 2) / (k + 1)) / log(V + 1), with replacement: int32 [S].

    A pure function of `seed` (int32 [2]).
    """
    uniform = tf.random.stateless_uniform((samples,), seed, dtype=tf.float64)
    drawn = tf.exp(uniform * math.log(words + 1.0)) - 1.0
    return tf.minimum(tf.cast(drawn, tf.int32), words - 1)


def log_expected_count(drawn: tf.Tensor, samples: int, words: int, dtype: tf.DType) -> tf.Tensor:
    """The logarithm of S Q(k), how often :func:`log_uniform_words` gives each of the words `drawn`, in `dtype`."""
    k = tf.cast(drawn, tf.float64)
    return tf.cast(tf.math.log(samples * tf.math.log1p(1.0 / (k + 1.0)) / math.log(words + 1.0)), dtype)


@tf.function(jit_compile=True, autograph=False)
def _log_normalizers(true: tf.Tensor, others: tf.Tensor, corrections: tf.Tensor) -> tf.Tensor:
    """Logarithm [R] of the sum over the corrected logits of the target [R] and of the samples [R, S]."""
    wide = tf.cast(others, true.dtype) - corrections
    largest = tf.maximum(true, tf.reduce_max(wide, axis=1))
    return largest + tf.math.log(tf.exp(true - largest) + tf.reduce_sum(tf.exp(wide - largest[:, None]), axis=1))


@tf.function(jit_compile=True, autograph=False)
def _errors(others: tf.Tensor, corrections: tf.Tensor, normalizers: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Softmax of the samples [R, S] times `upstream` of the row, rounded once."""
    wide = tf.cast(others, normalizers.dtype) - corrections - normalizers[:, None]
    return tf.cast(tf.exp(wide) * upstream[:, None], others.dtype)


@tf.autograph.experimental.do_not_convert
def sampled_softmax_losses(
    h: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, targets: tf.Tensor, drawn: tf.Tensor
) -> tf.Tensor:
    """Cross-entropy in nats of `targets` against themselves and the words `drawn`.

    Args:
        h: inputs of the output layer [R, N] in the compute dtype.
        kernel: [N, V], likewise.
        bias: [V], likewise.
        targets: words, int [R].
        drawn: words of :func:`log_uniform_words`, int32 [S], the same for all rows.

    Returns:
        Losses [R], float32 (float64 where the products are): the logarithm of the sum less the target's logit as it
        stands, so that they near those of the full softmax as S grows. Gradients come in the compute dtype; those of
        kernel and bias are dense.
    """
    words, exact = kernel.shape[1], exact_dtype(h.dtype)
    samples = drawn.shape[0]
    targets = tf.cast(targets, tf.int32)
    chosen = tf.concat([drawn, targets], axis=0)
    columns = embed(tf.transpose(kernel), chosen)
    biases = embed(bias[:, None], chosen)[:, 0]
    corrections = log_expected_count(chosen, samples, words, exact)
    others = tf.matmul(h, columns[:samples], transpose_b=True) + biases[:samples]
    true = tf.reduce_sum(tf.cast(h, exact) * tf.cast(columns[samples:], exact), axis=1)
    true += tf.cast(biases[samples:], exact)

    @tf.custom_gradient
    def run(true: tf.Tensor, others: tf.Tensor) -> tuple:
        corrected, of_samples = true - corrections[samples:], corrections[:samples]
        normalizers = _log_normalizers(corrected, others, of_samples)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            errors = _errors(others, of_samples, normalizers, upstream)
            return (tf.exp(corrected - normalizers) - 1.0) * upstream, errors

        return normalizers - true, gradient

    return run(true, others)
