"""A convolutional classifier of small images (MNIST, Fashion-MNIST, CIFAR-10)."""

from __future__ import annotations

import keras
import tensorflow as tf

from dist_mp.config import ConvolutionalModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task
from dist_mp.model.classifier import class_losses
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Conv2D, Dense
from dist_mp.model.ops import stateless_dropout


class ConvolutionalNetwork(keras.Model):
    """Blocks of two 3x3 convolutions and a pooling by 2, channels doubled each time, then two dense layers."""

    def __init__(self, config: ConvolutionalModel, spec: DataSpec, seed: int, dtype: str) -> None:
        """Create the variables: He weights before ReLU, Glorot for the output, biases at 0."""
        super().__init__(name="convolutional", dtype=dtype)
        initializers = SeededInitializers(seed)
        self.dropout, self.classes = config.dropout, spec.classes
        self.image = (spec.length, spec.width, spec.channels // spec.width)
        height, width, channels = self.image
        self.convolutions = []
        for block in range(config.blocks):
            filters = config.filters * 2**block
            for i in range(2):
                name = f"conv_{block}_{i}"
                start = initializers(name, keras.initializers.HeNormal)
                layer = Conv2D(filters, 3, padding="same", kernel_initializer=start, name=name, dtype=dtype)
                layer.build((None, height, width, channels))
                self.convolutions.append(layer)
                channels = filters
            height, width = height // 2, width // 2
        self.hidden = Dense(
            config.dense,
            activation="relu",
            kernel_initializer=initializers("dense", keras.initializers.HeNormal),
            name="dense",
            dtype=dtype,
        )
        self.hidden.build((None, height * width * channels))
        output = initializers("output", keras.initializers.GlorotUniform)
        self.output_layer = Dense(spec.classes, kernel_initializer=output, name="output", dtype=dtype)
        self.output_layer.build((None, config.dense))
        self.built = True

    def call(self, rows: tf.Tensor, training: bool, seed: tf.Tensor) -> tf.Tensor:
        """Logits [B, classes] for images as series of rows [B, H, W * colours]."""
        rate = self.dropout if training else 0.0
        x = tf.reshape(tf.cast(rows, self.compute_dtype), (-1, *self.image))
        for block, (first, second) in enumerate(zip(self.convolutions[::2], self.convolutions[1::2], strict=True)):
            x = tf.nn.max_pool2d(tf.nn.relu(second(tf.nn.relu(first(x)))), 2, 2, "VALID")
            x = stateless_dropout(x, rate, seed, salt=block)
        x = self.hidden(tf.reshape(x, (-1, x.shape[1] * x.shape[2] * x.shape[3])))
        return self.output_layer(stateless_dropout(x, rate, seed, salt=100))


class ConvolutionalTask(Task):
    """One class an image; the loss is the cross-entropy, in nats."""

    def __init__(self, config: ConvolutionalModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Build the model for the images and the classes of `spec`."""
        if not spec.width:
            raise UserError("model.kind convolutional needs images; the data holds series or words")
        if min(spec.length, spec.width) < 2**config.blocks:
            raise UserError(
                f"model.blocks is {config.blocks}, but images of {spec.length} x {spec.width} can be halved "
                f"{min(spec.length, spec.width).bit_length() - 1} times"
            )
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.model = ConvolutionalNetwork(config, spec, seed, compute_dtype)

    def initial_state(self, rows: int) -> State:
        """No state."""
        return []

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Logits [B, H, classes], the same at each of the H rows of an image, and no state."""
        logits = self.model.call(inputs, training, seed)
        shape = (tf.shape(inputs)[0], inputs.shape[1], logits.shape[1])
        return tf.broadcast_to(logits[:, None], shape), state

    def losses(self, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Cross-entropy of the class [B, H], where `weight` is not 0: at an image's last row."""
        # Of the equal rows only the last is looked at, and so the gradient of broadcasting adds zeros to one row.
        last = class_losses(outputs[:, -1:], targets[:, -1:], weight[:, -1:])
        return tf.concat([tf.zeros_like(weight[:, :-1]), last], axis=1)
