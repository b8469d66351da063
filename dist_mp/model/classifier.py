"""Classifiers of labelled sequences: words or features through recurrent layers, one class a sequence.

The label of a sequence stands at its last valid step (:mod:`dist_mp.data.buckets`), and so does the output that counts.
In one direction nothing looks beyond the step it computes, so that padding at the end changes nothing. A bidirectional
classifier, in the manner of Deep Speech 2 (Amodei et al. 2016, arXiv 1512.02595), reads a sequence as a whole: padding
is zeroed before each convolution, the backward direction begins at a row's last valid step, and the mean over the valid
steps is what is classified.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dist_mp.config import ClassifierModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task, valid_steps
from dist_mp.model.bidirectional import BidirectionalStack
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Conv1D, Dense, Embedding
from dist_mp.model.ops import softmax_losses, stateless_dropout
from dist_mp.model.stack import RecurrentStack
from dist_mp.model.time_loop import exact_dtype


class ClassifierNetwork(keras.Model):
    """Embedding (words) or convolutions over time (features), recurrent layers, and a dense layer, in this order."""

    def __init__(self, config: ClassifierModel, spec: DataSpec, seed: int, dtype: str) -> None:
        """Create the variables: Glorot and orthogonal weights, biases at 0, forget gates' biases at 1."""
        super().__init__(name="classifier", dtype=dtype)
        initializers = SeededInitializers(seed)

        def glorot(name: str) -> keras.Initializer:
            return initializers(name, keras.initializers.GlorotUniform)

        self.embedding, self.convolutions, self.dropout = None, [], config.dropout
        features = spec.channels
        if spec.vocabulary:
            features = config.embedding
            start = initializers("embedding", keras.initializers.RandomUniform, minval=-0.05, maxval=0.05)
            self.embedding = Embedding(
                spec.vocabulary, features, embeddings_initializer=start, name="embedding", dtype=dtype
            )
            self.embedding.build((None, None))
        self.bidirectional = config.bidirectional
        for i in range(config.convolutions):
            name, stride = f"conv_{i}", config.stride if i == 0 else 1
            layer = Conv1D(
                config.filters, config.width, stride, kernel_initializer=glorot(name), name=name, dtype=dtype
            )
            layer.build((None, None, features))
            self.convolutions.append(layer)
            features = config.filters
        make: Any = BidirectionalStack if config.bidirectional else RecurrentStack
        self.stack = make(
            config.layers,
            config.units,
            features,
            config.dropout,
            glorot,
            lambda name: initializers(name, keras.initializers.Orthogonal),
            dtype,
            config.recompute,
            cell=config.cell,
        )
        self.output_layer = Dense(spec.classes, kernel_initializer=glorot("output"), name="output", dtype=dtype)
        self.output_layer.build((None, config.units))
        self.built = True

    def call(self, x: tf.Tensor, state: State, training: bool, seed: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Logits [B, T, classes] and the state after the window, for words [B, T] or features [B, T, F]."""
        x = self._entry(x)
        for i, layer in enumerate(self.convolutions):
            x = stateless_dropout(x, self.dropout if training else 0.0, seed, salt=100 + i)
            x = tf.nn.relu(layer(tf.pad(x, [[0, 0], [layer.kernel_size[0] - 1, 0], [0, 0]])))
        h, state = self.stack.call(tf.transpose(x, (1, 0, 2)), state, training, seed)
        return tf.transpose(self.output_layer(h), (1, 0, 2)), state

    def whole(self, x: tf.Tensor, lengths: tf.Tensor, training: bool, seed: tf.Tensor) -> tf.Tensor:
        """Logits [B, classes] of whole sequences, for words [B, T] or features [B, T, F] of so many valid steps."""
        x = self._entry(x)
        for i, layer in enumerate(self.convolutions):
            x = stateless_dropout(x, self.dropout if training else 0.0, seed, salt=100 + i)
            x = tf.where(tf.sequence_mask(lengths, x.shape[1])[:, :, None], x, tf.zeros_like(x))
            before = (layer.kernel_size[0] - 1) // 2
            x = tf.nn.relu(layer(tf.pad(x, [[0, 0], [before, layer.kernel_size[0] - 1 - before], [0, 0]])))
            lengths = -(-lengths // layer.strides[0])
        h = self.stack.call(tf.transpose(x, (1, 0, 2)), lengths, training, seed)
        valid = tf.transpose(tf.sequence_mask(lengths, h.shape[0]))[:, :, None]
        exact = exact_dtype(h.dtype)
        total = tf.reduce_sum(tf.cast(tf.where(valid, h, tf.zeros_like(h)), exact), axis=0)
        mean = total / tf.cast(tf.maximum(lengths, 1), exact)[:, None]
        return self.output_layer(tf.cast(mean, h.dtype))

    def _entry(self, x: tf.Tensor) -> tf.Tensor:
        return self.embedding(x) if self.embedding is not None else tf.cast(x, self.compute_dtype)


class ClassifierTask(Task):
    """One class a sequence; the loss is the cross-entropy at its last valid step, in nats."""

    def __init__(self, config: ClassifierModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Build the model for the words or channels and the classes of `spec`."""
        if config.convolutions and spec.vocabulary:
            raise UserError("model.convolutions is for series and images; the data holds words: set it to 0")
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.model = ClassifierNetwork(config, spec, seed, compute_dtype)

    def initial_state(self, rows: int) -> State:
        """Zero state for so many rows; none where whole sequences are read."""
        return [] if self.model.bidirectional else self.model.stack.initial_state(rows)

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Logits [B, T, classes] in the compute dtype, and the state after them.

        Bidirectional, they are the same at every step of a row, and `weight` must say where it ends.
        """
        if not self.model.bidirectional:
            return self.model.call(inputs, state, training, seed)
        if weight is None:
            raise ValueError("a bidirectional classifier needs the weights of its window")
        logits = self.model.whole(inputs, valid_steps(weight), training, seed)
        return tf.broadcast_to(logits[:, None], (*weight.shape, logits.shape[1])), state

    def losses(self, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Cross-entropy of the class [B, T], in nats; 0 with a gradient of 0 where `weight` is 0."""
        return class_losses(outputs, targets, weight)


def class_losses(outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of classes `targets` (int [B, T]) under logits [B, T, classes], where `weight` [B, T] is not 0."""
    valid = weight > 0
    logits = tf.where(valid[:, :, None], outputs, tf.zeros_like(outputs))
    losses = softmax_losses(tf.reshape(logits, (-1, outputs.shape[2])), tf.reshape(targets, (-1,)))
    return tf.where(valid, tf.reshape(losses, tf.shape(targets)), 0.0)
