"""Initial values that do not depend on the precision: drawn in float32, rounded once."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="dist_mp")
class Float32Draw(keras.initializers.Initializer):
    """An initializer that draws in float32 and rounds once, so that every precision starts from the same values."""

    def __init__(self, inner: keras.initializers.Initializer) -> None:
        """Wrap an initializer."""
        self.inner: keras.initializers.Initializer = inner.inner if isinstance(inner, Float32Draw) else inner

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> tf.Tensor:
        """Values of `shape`, rounded to `dtype`."""
        return tf.cast(self.inner(shape, dtype="float32"), dtype or "float32")

    def get_config(self) -> dict[str, Any]:
        """The wrapped initializer."""
        return {"inner": keras.initializers.serialize(self.inner)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Float32Draw:
        """The inverse of :meth:`get_config`."""
        return cls(keras.initializers.deserialize(config["inner"]))


class SeededInitializers:
    """Initializers of a model, each seeded by the model's seed and the variable's name."""

    def __init__(self, seed: int) -> None:
        """Derive everything from `seed`."""
        self._seed = seed

    def __call__(
        self, name: str, kind: Callable[..., keras.initializers.Initializer], **settings: float
    ) -> Float32Draw:
        """The initializer `kind(**settings)` of the variable `name`."""
        return Float32Draw(kind(**settings, seed=zlib.crc32(f"{self._seed}/{name}".encode())))
