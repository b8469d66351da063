"""Word language model: embedding, stacked LSTM, softmax over the vocabulary (Zaremba et al. 2014, arXiv 1409.2329).

With `projection` and the sampled softmax it is the big LSTM of Jozefowicz et al. (2016, arXiv 1602.02410).
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from dist_mp.config import LanguageModel
from dist_mp.model.base import Outputs, State, Task
from dist_mp.model.blocked_softmax import blocked_softmax_losses
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Dense, Embedding
from dist_mp.model.ops import softmax_losses
from dist_mp.model.sampled_softmax import log_uniform_words, sampled_softmax_losses
from dist_mp.model.stack import RecurrentStack

SAMPLING_SALT = 1000
"""Tells the sampler of the softmax from the dropout layers, which are numbered from 0 on."""


class LanguageNetwork(keras.Model):
    """The layers of the language model, in the order of forward, all variables in one dtype."""

    def __init__(self, config: LanguageModel, words: int, seed: int, dtype: str) -> None:
        """Create the variables; weights start uniform in +-init_scale, biases at 0, forget gates' biases at 1."""
        super().__init__(name="language", dtype=dtype)
        initializers = SeededInitializers(seed)

        def uniform(name: str) -> keras.Initializer:
            scale = config.init_scale
            return initializers(name, keras.initializers.RandomUniform, minval=-scale, maxval=scale)

        width = config.projection or config.units
        self.embedding = Embedding(
            words, width, embeddings_initializer=uniform("embedding"), name="embedding", dtype=dtype
        )
        self.stack = RecurrentStack(
            config.layers,
            config.units,
            width,
            config.dropout,
            uniform,
            uniform,
            dtype,
            config.recompute,
            projection=config.projection,
        )
        self.output_layer = Dense(words, kernel_initializer=uniform("output"), name="output", dtype=dtype)
        self.embedding.build((None, None))
        self.output_layer.build((None, width))
        self.built = True

    def features(self, words: tf.Tensor, state: State, training: bool, seed: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Inputs [T, B, P] of the output layer and the state after the window, for words [B, T]."""
        x = self.embedding(tf.transpose(words))
        return self.stack.call(x, state, training, seed)

    def call(self, words: tf.Tensor, state: State, training: bool, seed: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Logits [T, B, V] and the state after the window, for words [B, T]."""
        h, state = self.features(words, state, training, seed)
        return self.output_layer(h), state


class SampledOutputs(NamedTuple):
    """What a training step with the sampled softmax hands from forward to losses."""

    features: tf.Tensor
    """Inputs of the output layer [T, B, P]."""
    drawn: tf.Tensor
    """Words beside the targets, int32 [S]."""


class LanguageTask(Task):
    """Next-word prediction: the loss is the cross-entropy of each word, in nats.

    With `softmax: sampled` the loss of training is that of :mod:`dist_mp.model.sampled_softmax`; evaluation is by the
    full softmax always.
    """

    def __init__(self, config: LanguageModel, words: int, seed: int, compute_dtype: str) -> None:
        """Build the model for a vocabulary of so many words."""
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self._block, self._words = config.softmax_block, words
        self._samples = config.softmax_samples if config.softmax == "sampled" else None
        self.model = LanguageNetwork(config, words, seed, compute_dtype)

    def initial_state(self, rows: int) -> State:
        """Zero state for so many rows."""
        return self.model.stack.initial_state(rows)

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[Outputs, State]:
        """Logits [T, B, V] (time-major, in the compute dtype) for words [B, T], and the state after them.

        With `softmax_block` the outputs are the output layer's inputs [T, B, P]: :meth:`losses` makes the logits. So
        they are, with the words drawn by `seed`, in training with the sampled softmax.
        """
        if training and self._samples is not None:
            features, state = self.model.features(inputs, state, training, seed)
            own_seed = tf.random.experimental.stateless_fold_in(seed, SAMPLING_SALT)
            return SampledOutputs(features, log_uniform_words(self._samples, self._words, own_seed)), state
        if self._block is None:
            return self.model.call(inputs, state, training, seed)
        return self.model.features(inputs, state, training, seed)

    def losses(self, outputs: Outputs, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Cross-entropy of the next words [B, T], in nats."""
        features, *drawn = outputs if isinstance(outputs, SampledOutputs) else (outputs,)
        rows = tf.reshape(features, (-1, features.shape[2]))
        words = tf.reshape(tf.transpose(targets), (-1,))
        layer = self.model.output_layer
        kernel, bias = (tf.convert_to_tensor(w) for w in (layer.kernel, layer.bias))
        if drawn:
            losses = sampled_softmax_losses(rows, kernel, bias, words, *drawn)
        elif self._block is None:
            losses = softmax_losses(rows, words)
        else:
            losses = blocked_softmax_losses(rows, kernel, bias, words, self._block)
        return tf.transpose(tf.reshape(losses, tf.shape(features)[:2]))

    def scores(self, outputs: Outputs) -> tf.Tensor:
        """Logits [T, B, V], float32, of what :meth:`forward` gives outside training."""
        return tf.cast(outputs if self._block is None else self.model.output_layer(outputs), tf.float32)
