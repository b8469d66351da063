"""The user's own Keras model, from a function that the settings name, with the loss that the data calls for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from dist_mp.config import PythonModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import State, Task
from dist_mp.model.classifier import class_losses
from dist_mp.model.disruption import target_losses
from dist_mp.model.ops import softmax_losses


def find_function(name: str) -> Callable[[DataSpec], Any]:
    """The function `package.module:function`, looked for in the current folder too.

    Raises:
        UserError: no such module or function.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UserError(f"model.function: {name!r} must be package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UserError(f"model.function: no module {error.name!r} here or among the installed ones") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"model.function: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


class UserTask(Task):
    """A Keras model that maps a batch of inputs to outputs, without state between windows.

    The function takes the data's :class:`dist_mp.data.base.DataSpec` and returns the model; it is called under the
    dtype policy of the run's precision, in which all weights are created. Layers that should compute in float32 (batch
    and layer normalisation) are given `dtype="float32"`. Weights that are not trained stay each rank's own.

    Inputs are int [B, T] words or float32 [B, T, F] features. Outputs, by data: text: logits [B, T, V]; labelled:
    logits [B, classes] or, of each step, [B, T, classes]; shots: [B, T] or [B, T, 1].
    """

    def __init__(self, config: PythonModel, spec: DataSpec, seed: int, compute_dtype: str) -> None:
        """Call the function; initial values come from Keras's generator, seeded by `seed`.

        Raises:
            UserError: no such function, or what it returns is no Keras model that fits the data.
        """
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self._name, self._spec, self._target = config.function, spec, config.target
        function = find_function(config.function)
        policy = keras.config.dtype_policy()
        keras.utils.set_random_seed(seed)
        try:
            keras.config.set_dtype_policy(compute_dtype)
            model = function(spec)
            if not isinstance(model, keras.Model):
                raise UserError(f"{config.function} must return a Keras model, got {type(model).__name__}")
            sample = tf.zeros((1, spec.length), tf.int32)
            if not spec.vocabulary:
                features = spec.channels or spec.scalars + spec.profiles * spec.profile_points
                sample = tf.zeros((1, spec.length, features))
            outputs = model(sample)
        finally:
            keras.config.set_dtype_policy(policy)
        self.model = model
        self._check(tuple(outputs.shape))

    def _check(self, shape: tuple[int, ...]) -> None:
        spec = self._spec
        wanted: list[tuple[int, ...]] = [(1, spec.length), (1, spec.length, 1)]
        if spec.classes:
            wanted = [(1, spec.classes), (1, spec.length, spec.classes)]
        elif spec.vocabulary:
            wanted = [(1, spec.length, spec.vocabulary)]
        if shape not in wanted:
            choices = " or ".join(str(list(w)) for w in wanted)
            raise UserError(f"{self._name}: outputs for one row must have the shape {choices}, got {list(shape)}")
        if not self.model.trainable_variables:
            raise UserError(f"{self._name}: the model has no weights to train")

    def initial_state(self, rows: int) -> State:
        """No state."""
        return []

    def forward(
        self, inputs: tf.Tensor, state: State, *, training: bool, seed: tf.Tensor, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Outputs of the model, repeated at each step where it has one a sequence; dropout is Keras's own."""
        outputs = self.model(inputs, training=training)
        if self._spec.classes and len(outputs.shape) == 2:
            shape = (tf.shape(inputs)[0], tf.shape(inputs)[1], outputs.shape[1])
            outputs = tf.broadcast_to(outputs[:, None], shape)
        elif not self._spec.classes and not self._spec.vocabulary and len(outputs.shape) == 3:
            outputs = outputs[:, :, 0]
        return outputs, state

    def losses(self, outputs: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Cross-entropy in nats for text and labelled data, `model.target` for shots, [B, T]."""
        if self._spec.classes:
            return class_losses(outputs, targets, weight)
        if self._spec.vocabulary:
            words = outputs.shape[2]
            losses = softmax_losses(tf.reshape(outputs, (-1, words)), tf.reshape(targets, (-1,)))
            return tf.reshape(losses, tf.shape(targets))
        return target_losses(self._target, outputs, targets, weight)

    def scores(self, outputs: tf.Tensor) -> tf.Tensor:
        """The outputs, float32; of the target binary their sigmoid."""
        y = tf.cast(outputs, tf.float32)
        shots = not self._spec.classes and not self._spec.vocabulary
        return tf.sigmoid(y) if shots and self._target == "binary" else y
