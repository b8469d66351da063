"""A small generative adversarial network of images, in the manner of DCGAN (Radford et al. 2016, arXiv 1511.06434).

Generator and discriminator are trained in one step, on one loss: the discriminator's, in which generated images count
as constants, plus the generator's, in which the discriminator's weights do. So the gradient of each network is that of
its own loss, and loss scale, exchange and update are those of any other model. Both see the weights as they were before
the step. Only the generator normalises, each image by itself (layer normalisation, in float32), where the paper's
networks do so over the batch: an image must not depend on which others its rank holds. Legend of shapes: B images, H x
W pixels, Z numbers of noise.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from dist_mp.config import GanModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task
from dist_mp.model.initial import SeededInitializers
from dist_mp.model.layers import Conv2D, Dense
from dist_mp.model.ops import add_bias, conv2d, dense

HALVINGS = 2
"""Times that the discriminator halves an image, and the generator doubles it."""
NOISE_SALT = 2000
"""Tells the noise from dropout and other samplers."""
LARGEST = 4.0
"""Bound on a pixel of a generated image, in units of the data's deviation."""
SLOPE = 0.2
"""Of the leaky ReLU."""


class GanOutputs(NamedTuple):
    """What the forward pass leaves for the losses."""

    images: tf.Tensor
    """Generated images [B, H, W, colours]."""
    real: tf.Tensor
    """Logits [B] of real images being real."""
    fake: tf.Tensor
    """Logits [B] of generated images being real, with a gradient to the discriminator only."""
    fooled: tf.Tensor
    """The same numbers, with a gradient to the generator only."""


def _normalised(x: tf.Tensor) -> tf.Tensor:
    """Each image [H, W, C] of x to mean 0 and deviation 1, computed in float32."""
    wide = x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(wide, axes=[1, 2, 3], keepdims=True)
    return tf.cast((wide - mean) * tf.math.rsqrt(variance + 1e-5), x.dtype)


def _leaky(x: tf.Tensor) -> tf.Tensor:
    return tf.maximum(x, x * tf.cast(SLOPE, x.dtype))


class GanNetwork(keras.Model):
    """Both networks, the generator's variables first, all in one dtype."""

    def __init__(self, config: GanModel, spec: DataSpec, seed: int, dtype: str) -> None:
        """Create the variables: He weights, the last layers' small, biases at 0."""
        super().__init__(name="gan", dtype=dtype)
        initializers = SeededInitializers(seed)
        self.noise = config.noise
        self.image = (spec.length, spec.width, spec.channels // spec.width)
        high, wide, colours = self.image
        least = config.filters * 2**HALVINGS
        self.start = (high // 2**HALVINGS, wide // 2**HALVINGS, least)

        def conv(name: str, channels: int, filters: int) -> Conv2D:
            start = initializers(name, keras.initializers.HeNormal)
            layer = Conv2D(filters, 3, padding="same", kernel_initializer=start, name=name, dtype=dtype)
            layer.build((None, None, None, channels))
            return layer

        def full(name: str, features: int, width: int) -> Dense:
            start = initializers(name, keras.initializers.GlorotUniform)
            layer = Dense(width, kernel_initializer=start, name=name, dtype=dtype)
            layer.build((None, features))
            return layer

        self.grow = full("generator_dense", config.noise, self.start[0] * self.start[1] * least)
        self.up = [
            conv(f"generator_{i}", config.filters * 2 ** (HALVINGS - i), 4 * config.filters * 2 ** (HALVINGS - 1 - i))
            for i in range(HALVINGS)
        ]
        self.paint = conv("generator_paint", config.filters, colours)
        self.first = conv("discriminator_first", colours, config.filters)
        self.down = [
            conv(f"discriminator_{i}", 4 * config.filters * 2**i, config.filters * 2 ** (i + 1))
            for i in range(HALVINGS)
        ]
        self.judge = full("discriminator_dense", self.start[0] * self.start[1] * least, 1)
        self.built = True

    def generate(self, noise: tf.Tensor) -> tf.Tensor:
        """Images [B, H, W, colours] of noise [B, Z]."""
        x = tf.nn.relu(_normalised(tf.reshape(self.grow(noise), (-1, *self.start))))
        for layer in self.up:
            # A quarter of the channels and twice the pixels: a transposed convolution without its chequers.
            x = tf.nn.relu(_normalised(tf.nn.depth_to_space(layer(x), 2)))
        return LARGEST * tf.tanh(self.paint(x) / LARGEST)

    def discriminate(self, images: tf.Tensor, frozen: bool = False) -> tf.Tensor:
        """Logits [B] of images being real; `frozen` keeps the gradient from this network's weights."""

        def weights(layer: keras.layers.Layer) -> list[tf.Tensor]:
            values = [tf.cast(tf.convert_to_tensor(w), images.dtype) for w in (layer.kernel, layer.bias)]
            return [tf.stop_gradient(w) for w in values] if frozen else values

        def convolved(x: tf.Tensor, layer: keras.layers.Layer) -> tf.Tensor:
            kernel, bias = weights(layer)
            return add_bias(conv2d(x, kernel), bias)

        x = _leaky(convolved(images, self.first))
        for layer in self.down:
            x = _leaky(convolved(tf.nn.space_to_depth(x, 2), layer))
        return dense(tf.reshape(x, (-1, x.shape[1] * x.shape[2] * x.shape[3])), *weights(self.judge))[:, 0]

    def call(self, rows: tf.Tensor, noise: tf.Tensor) -> GanOutputs:
        """Both networks on real images as series of rows [B, H, W * colours] and as many generated ones."""
        real = tf.reshape(tf.cast(rows, self.compute_dtype), (-1, *self.image))
        images = self.generate(noise)
        return GanOutputs(
            images,
            self.discriminate(real),
            self.discriminate(tf.stop_gradient(images)),
            self.discriminate(images, frozen=True),
        )


class GanTask(Task):
    """Images like those of the data set; the loss is the sum of both networks' cross-entropies, in nats."""

    def __init__(self, config: GanModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Build the model for the images of `spec`."""
        if not spec.width or spec.objects:
            raise UserError("model.kind gan needs images (data.kind labelled, format idx, cifar, arrays or shapes)")
        if spec.length % 2**HALVINGS or spec.width % 2**HALVINGS:
            raise UserError(
                f"model.kind gan needs images whose sides are multiples of {2**HALVINGS}, got "
                f"{spec.length} x {spec.width}"
            )
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.model = GanNetwork(config, spec, seed, compute_dtype)

    def initial_state(self, rows: int) -> State:
        """No state."""
        return []

    def noise(self, inputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Noise [B, Z] for a window, a function of `seed` and of what the window holds."""
        content = tf.bitcast(tf.reduce_sum(tf.cast(inputs, tf.float32)), tf.int32)
        fold = tf.random.experimental.stateless_fold_in
        drawn = tf.random.stateless_normal((inputs.shape[0], self.model.noise), fold(fold(seed, NOISE_SALT), content))
        return tf.cast(drawn, self.compute_dtype)

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[GanOutputs, State]:
        """Generated images and the discriminator's logits, in the compute dtype, and no state."""
        return self.model.call(inputs, self.noise(inputs, seed)), state

    def losses(self, outputs: GanOutputs, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Loss of an image and of a generated one [B, H], where `weight` is not 0: at an image's last row."""
        exact = tf.float64 if self.compute_dtype == tf.float64 else tf.float32
        real, fake, fooled = (tf.cast(o, exact) for o in (outputs.real, outputs.fake, outputs.fooled))
        both = tf.nn.softplus(-real) + tf.nn.softplus(fake) + tf.nn.softplus(-fooled)
        return tf.where(weight > 0, tf.cast(both, tf.float32)[:, None], 0.0)

    def scores(self, outputs: GanOutputs) -> tf.Tensor:
        """The generated images as series of rows, float32 [B, H, W * colours]."""
        high, wide, colours = self.model.image
        return tf.reshape(tf.cast(outputs.images, tf.float32), (-1, high, wide * colours))
