"""Classifiers of labelled sequences: words or features through recurrent layers, one class a sequence.

The label of a sequence stands at its last valid step (:mod:`dist_mp.data.buckets`), and so does the output that counts:
nothing here looks beyond the step it computes, so that padding at the end changes nothing.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from dist_mp.config import ClassifierModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Conv1D, Dense, Embedding
from dist_mp.model.ops import softmax_losses, stateless_dropout
from dist_mp.model.stack import RecurrentStack


class ClassifierNetwork(keras.Model):
    """Embedding (words) or causal convolutions (features), recurrent layers, and a dense layer, in this order."""

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
        for i in range(config.convolutions):
            name = f"conv_{i}"
            layer = Conv1D(config.filters, config.width, kernel_initializer=glorot(name), name=name, dtype=dtype)
            layer.build((None, None, features))
            self.convolutions.append(layer)
            features = config.filters
        self.stack = RecurrentStack(
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
        if self.embedding is not None:
            x = self.embedding(x)
        else:
            x = tf.cast(x, self.compute_dtype)
        for i, layer in enumerate(self.convolutions):
            x = stateless_dropout(x, self.dropout if training else 0.0, seed, salt=100 + i)
            x = tf.nn.relu(layer(tf.pad(x, [[0, 0], [layer.kernel_size[0] - 1, 0], [0, 0]])))
        h, state = self.stack.call(tf.transpose(x, (1, 0, 2)), state, training, seed)
        return tf.transpose(self.output_layer(h), (1, 0, 2)), state


class ClassifierTask(Task):
    """One class a sequence; the loss is the cross-entropy at its last valid step, in nats."""

    def __init__(self, config: ClassifierModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Build the model for the words or channels and the classes of `spec`."""
        if config.convolutions and spec.vocabulary:
            raise UserError("model.convolutions is for series and images; the data holds words: set it to 0")
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.model = ClassifierNetwork(config, spec, seed, compute_dtype)

    def initial_state(self, rows: int) -> State:
        """Zero state for so many rows."""
        return self.model.stack.initial_state(rows)

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Logits [B, T, classes] in the compute dtype, and the state after them."""
        return self.model.call(inputs, state, training, seed)

    def losses(self, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Cross-entropy of the class [B, T], in nats; 0 with a gradient of 0 where `weight` is 0."""
        return class_losses(outputs, targets, weight)


def class_losses(outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of classes `targets` (int [B, T]) under logits [B, T, classes], where `weight` [B, T] is not 0."""
    valid = weight > 0
    logits = tf.where(valid[:, :, None], outputs, tf.zeros_like(outputs))
    losses = softmax_losses(tf.reshape(logits, (-1, outputs.shape[2])), tf.reshape(targets, (-1,)))
    return tf.where(valid, tf.reshape(losses, tf.shape(targets)), 0.0)
