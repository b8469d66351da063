"""A small single-shot detector of objects (Liu et al. 2016, SSD, arXiv 1512.02325).

Convolutions halve the image twice and a third time; at both of the smaller maps a convolution gives, for each default
box of each cell, logits of the kinds of objects and of none, and four offsets. Legend of shapes: B images, H x W
pixels, A default boxes, C kinds of objects.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from dist_mp.config import DetectorModel
from dist_mp.data.base import DataSpec
from dist_mp.data.boxes import RATIOS, STRIDES
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Conv2D
from dist_mp.model.ops import softmax_losses

NEGATIVES = 3
"""Default boxes without an object that count in the loss, for one with an object."""


class DetectorNetwork(keras.Model):
    """Blocks of two 3x3 convolutions, each followed by a pooling by 2, channels doubled each time, and a head a map."""

    def __init__(self, config: DetectorModel, spec: DataSpec, seed: int, dtype: str) -> None:
        """Create the variables: He weights before ReLU, Glorot in the heads, biases at 0."""
        super().__init__(name="detector", dtype=dtype)
        initializers = SeededInitializers(seed)
        self.image = (spec.length, spec.width, spec.channels // spec.width)
        self.kinds = spec.objects
        channels = self.image[2]
        self.blocks, self.heads = [], []
        for block in range(4):
            filters = config.filters * 2 ** min(block, 2)
            for i in range(2):
                name = f"conv_{block}_{i}"
                start = initializers(name, keras.initializers.HeNormal)
                layer = Conv2D(filters, 3, padding="same", kernel_initializer=start, name=name, dtype=dtype)
                layer.build((None, None, None, channels))
                self.blocks.append(layer)
                channels = filters
            if 2**block in STRIDES:
                name = f"head_{block}"
                start = initializers(name, keras.initializers.GlorotUniform)
                width = len(RATIOS) * (self.kinds + 1 + 4)
                head = Conv2D(width, 3, padding="same", kernel_initializer=start, name=name, dtype=dtype)
                head.build((None, None, None, channels))
                self.heads.append(head)
        self.built = True

    def call(self, rows: tf.Tensor) -> tf.Tensor:
        """Logits of none and of each kind, and four offsets: [B, A, C + 5], for images as series of rows."""
        x = tf.reshape(tf.cast(rows, self.compute_dtype), (-1, *self.image))
        found, heads = [], list(self.heads)
        for block in range(4):
            if block:
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
            for layer in self.blocks[2 * block : 2 * block + 2]:
                x = tf.nn.relu(layer(x))
            if 2**block in STRIDES:
                y = heads.pop(0)(x)
                found.append(tf.reshape(y, (-1, y.shape[1] * y.shape[2] * len(RATIOS), self.kinds + 5)))
        return tf.concat(found, axis=1)


class DetectorTask(Task):
    """Kinds and boxes of the objects in an image; targets and weights are those of :mod:`dist_mp.data.shapes`.

    The loss of an image is the sum of the cross-entropy of the default boxes with an object, of the hardest `NEGATIVES`
    times as many without, and of the smooth L1 of the offsets; a mean over all default boxes with an object, of all
    images and ranks, as in section 2.2 of the paper.
    """

    def __init__(self, config: DetectorModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Build the model for the images and the kinds of objects of `spec`."""
        if not (spec.objects and spec.width):
            raise UserError("model.kind detector needs images with boxes (data.kind shapes)")
        if spec.length % STRIDES[-1] or spec.width != spec.length:
            raise UserError(
                f"model.kind detector needs square images of a multiple of {STRIDES[-1]} pixels, got "
                f"{spec.length} x {spec.width}"
            )
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.model = DetectorNetwork(config, spec, seed, compute_dtype)

    def initial_state(self, rows: int) -> State:
        """No state."""
        return []

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Logits and offsets [B, A, C + 5] in the compute dtype, and no state."""
        return self.model.call(inputs), state

    def losses(self, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Loss at each default box with an object [B, A], 0 elsewhere; that of those without is spread over them."""
        classes = self.model.kinds + 1
        positive = weight > 0
        rows = tf.reshape(outputs[:, :, :classes], (-1, classes))
        kind = softmax_losses(rows, tf.reshape(tf.cast(targets[:, :, 0], tf.int32), (-1,)))
        kind = tf.reshape(kind, tf.shape(weight))
        count = tf.reduce_sum(tf.cast(positive, tf.int32), axis=1, keepdims=True)
        # Mined in each image, so that the loss does not depend on how images are dealt to the ranks.
        hardest = tf.sort(tf.where(positive, 0.0, kind), axis=1, direction="DESCENDING")
        mined = tf.where(tf.range(weight.shape[1])[None] < NEGATIVES * count, hardest, 0.0)
        negative = tf.reduce_sum(mined, axis=1, keepdims=True) / tf.cast(tf.maximum(count, 1), tf.float32)
        distance = tf.abs(tf.cast(outputs[:, :, classes:], tf.float32) - targets[:, :, 1:])
        smooth = tf.where(distance < 1.0, 0.5 * tf.square(distance), distance - 0.5)
        return tf.where(positive, kind + tf.reduce_sum(smooth, axis=2) + negative, 0.0)

    def scores(self, outputs: tf.Tensor) -> tf.Tensor:
        """Probabilities of none and of each kind, and the offsets: float32 [B, A, C + 5]."""
        wide = tf.cast(outputs, tf.float32)
        classes = self.model.kinds + 1
        return tf.concat([tf.nn.softmax(wide[:, :, :classes]), wide[:, :, classes:]], axis=2)
