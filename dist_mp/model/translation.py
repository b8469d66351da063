"""Encoder-decoder with attention: LSTM layers on both sides, global attention (Luong et al. 2015, arXiv 1508.04025).

The decoder starts from the encoder's states after each row's last word. Its outputs of all steps then look at the
encoder's outputs at once, as there is no input feeding. Legend of shapes: B rows, S source steps, T target steps, N
cells, V words of the target.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from dist_mp.config import TranslationModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task
from dist_mp.model.classifier import class_losses
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Dense, Embedding
from dist_mp.model.ops import stateless_dropout
from dist_mp.model.stack import RecurrentStack
from dist_mp.model.time_loop import exact_dtype

DECODER_SALT = 500
"""Tells the decoder's dropout masks from the encoder's."""


class TranslationNetwork(keras.Model):
    """The layers in the order of forward, all variables in one dtype."""

    def __init__(self, config: TranslationModel, spec: DataSpec, seed: int, dtype: str) -> None:
        """Create the variables: Glorot and orthogonal weights, biases at 0, forget gates' biases at 1."""
        super().__init__(name="translation", dtype=dtype)
        initializers = SeededInitializers(seed)
        self.dropout = config.dropout

        def embedding(side: str, words: int) -> Embedding:
            start = initializers(f"{side}_embedding", keras.initializers.RandomUniform, minval=-0.1, maxval=0.1)
            layer = Embedding(words, config.units, embeddings_initializer=start, name=f"{side}_embedding", dtype=dtype)
            layer.build((None, None))
            return layer

        def stack(side: str) -> RecurrentStack:
            return RecurrentStack(
                config.layers,
                config.units,
                config.units,
                config.dropout,
                lambda name: initializers(name, keras.initializers.GlorotUniform),
                lambda name: initializers(name, keras.initializers.Orthogonal),
                dtype,
                config.recompute,
                name=side,
            )

        def dense(name: str, width: int, features: int) -> Dense:
            start = initializers(name, keras.initializers.GlorotUniform)
            layer = Dense(width, kernel_initializer=start, name=name, dtype=dtype)
            layer.build((None, features))
            return layer

        self.source_embedding, self.encoder = embedding("source", spec.vocabulary), stack("encoder")
        self.target_embedding, self.decoder = embedding("target", spec.target_vocabulary), stack("decoder")
        self.query = dense("query", config.units, config.units)
        self.join = dense("join", config.units, 2 * config.units)
        self.output_layer = dense("output", spec.target_vocabulary, config.units)
        self.built = True

    def encode(self, source: tf.Tensor, training: bool, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, State]:
        """Outputs [B, S, N], which of them stand on words [B, S], and the states after each row's last word."""
        valid = source > 0
        x = self.source_embedding(tf.transpose(source))
        start = self.encoder.initial_state(source.shape[0])
        h, state = self.encoder.call(x, start, training, seed, mask=tf.transpose(valid))
        return tf.transpose(h, (1, 0, 2)), valid, state

    def decode(
        self,
        target: tf.Tensor,
        encoded: tuple[tf.Tensor, tf.Tensor],
        state: State,
        training: bool,
        seed: tf.Tensor,
    ) -> tuple[tf.Tensor, State]:
        """Logits [B, T, V] after each of the words read [B, T], from the states on, and the states after them."""
        seed = tf.random.experimental.stateless_fold_in(seed, DECODER_SALT)
        h, state = self.decoder.call(self.target_embedding(tf.transpose(target)), state, training, seed)
        h = tf.transpose(h, (1, 0, 2))
        context = attend(self.query(h), *encoded)
        joined = tf.tanh(self.join(tf.concat([context, h], axis=2)))
        return self.output_layer(stateless_dropout(joined, self.dropout if training else 0.0, seed, salt=100)), state

    def call(self, inputs: tf.Tensor, training: bool, seed: tf.Tensor) -> tf.Tensor:
        """Logits [B, T, V] for source and decoder words [B, T, 2]."""
        outputs, valid, state = self.encode(inputs[:, :, 0], training, seed)
        return self.decode(inputs[:, :, 1], (outputs, valid), state, training, seed)[0]


def attend(queries: tf.Tensor, keys: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Means [B, T, N] of `keys` [B, S, N], weighted by the softmax of their products with `queries` [B, T, N].

    The softmax is float32; a key that is not `valid` [B, S] has a weight of exactly 0. Products are scaled by the root
    of N, which keeps float16 in range (Vaswani et al. 2017).
    """
    exact = exact_dtype(queries.dtype)
    scaled = queries * tf.cast(queries.shape[2] ** -0.5, queries.dtype)
    scores = tf.cast(tf.matmul(scaled, keys, transpose_b=True), exact)
    weights = tf.nn.softmax(tf.where(valid[:, None], scores, exact.min))
    return tf.matmul(tf.cast(weights, keys.dtype), keys)


class TranslationTask(Task):
    """The next word of the target at every step of it; the loss is the cross-entropy, in nats."""

    def __init__(self, config: TranslationModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Build the model for the two vocabularies of `spec`."""
        if not (spec.vocabulary and spec.target_vocabulary):
            raise UserError("model.kind translation needs pairs of sentences (data.kind pairs)")
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.model = TranslationNetwork(config, spec, seed, compute_dtype)

    @property
    def recurrence(self) -> str:
        """What computes the decoder; the masks of the encoder are our own's."""
        return self.model.decoder.path

    def initial_state(self, rows: int) -> State:
        """No state: a window holds whole pairs."""
        return []

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Logits [B, T, V] in the compute dtype, for inputs as in :mod:`dist_mp.data.pairs`."""
        return self.model.call(inputs, training, seed), state

    def losses(self, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Cross-entropy of each word of the target [B, T]; 0 with a gradient of 0 where `weight` is 0."""
        return class_losses(outputs, targets, weight)

    def scores(self, outputs: tf.Tensor) -> tf.Tensor:
        """The likeliest word of each step, float32 [B, T]."""
        return tf.cast(tf.argmax(outputs, axis=2), tf.float32)
