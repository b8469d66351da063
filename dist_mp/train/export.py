"""The weights of a checkpoint as a Keras model and a SavedModel that load without dist_mp.

The model is built anew from Keras's own layers; those of dist_mp have the same weights in the same order. It starts
from zero state, takes any number of rows and, where the model reads step by step, of steps, and has no dropout.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from dist_mp.config import ClassifierModel, Config, ConvolutionalModel, DisruptionModel, LanguageModel, PythonModel
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.user import UserTask
from dist_mp.train.checkpoint_files import Checkpoint

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def export_checkpoint(checkpoint: Checkpoint, folder: Path, dtype: str = "fp32") -> keras.Model:
    """Write ``model.keras`` and a SavedModel ``saved_model`` into a folder that is empty or not there yet.

    Args:
        checkpoint: of a run.
        folder: where to write.
        dtype: fp32, fp16 or bf16: of weights and computation.

    Returns:
        The model.

    Raises:
        UserError: a model that needs layers of dist_mp, or a folder that cannot be written or is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not an empty folder; name another")
    spec = DataSpec(**checkpoint.manifest.spec)
    model = keras_model(checkpoint.config(), spec, checkpoint.masters(), DTYPES[dtype])
    if isinstance(checkpoint.config().model, PythonModel):  # moving averages and the like
        own = [v for name, v in checkpoint.tensors("rank-00000").items() if name.startswith("model/")]
        for variable, value in zip(model.non_trainable_variables, own, strict=True):
            variable.assign(keras.ops.cast(value, variable.dtype))
    unfinished = folder.with_name(f".unfinished-{folder.name}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        model.save(unfinished / "model.keras")
        model.export(unfinished / "saved_model", verbose=False)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return model


def keras_model(config: Config, spec: DataSpec, masters: Mapping[str, NDArray[np.float32]], dtype: str) -> keras.Model:
    """A model of Keras's layers with these weights, rounded once to `dtype` (float32, float16 or bfloat16).

    Outputs, float32: language: logits [B, T, V]; disruption: the score of each step [B, T], for the target binary a
    probability; classifier: logits [B, T, classes] after each step (bidirectional ones cannot be exported);
    convolutional: logits [B, classes]; python: those of the user's model.
    """
    model = config.model
    if isinstance(model, PythonModel):
        task = UserTask(model, spec, config.seed, dtype)
        built, variables = task.model, task.model.trainable_variables
    else:
        layers = _Layers(dtype)
        built = _network(model, spec, layers)
        variables = layers.variables()
    values = list(masters.values())
    shapes = [tuple(variable.shape) for variable in variables]
    # A kernel of a convolution over profiles has an axis of length 1 more.
    if [shape[-value.ndim :] for shape, value in zip(shapes, values, strict=True)] != [v.shape for v in values]:
        raise ValueError(f"weights of the shapes {[v.shape for v in values]} for a model of {shapes}")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(keras.ops.cast(value.reshape(variable.shape), variable.dtype))
    return built


class _Layers:
    """Makes Keras layers of one dtype and remembers them in the order of forward, which is that of the masters."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._made: list[keras.layers.Layer] = []

    def __call__(self, kind: type[keras.layers.Layer], *args: Any, **settings: Any) -> Any:
        # Zeros are replaced anyway, and some initializers have no bfloat16.
        if issubclass(kind, (keras.layers.LSTM, keras.layers.GRU)):
            settings |= {"kernel_initializer": "zeros", "recurrent_initializer": "zeros", "return_sequences": True}
        elif issubclass(kind, keras.layers.Embedding):
            settings |= {"embeddings_initializer": "zeros"}
        else:
            settings |= {"kernel_initializer": "zeros"}
        layer = kind(*args, dtype=self._dtype, **settings)
        self._made.append(layer)
        return layer

    def cast(self, x: Any) -> Any:
        return keras.ops.cast(x, self._dtype)

    def variables(self) -> list[keras.Variable]:
        return [variable for layer in self._made for variable in layer.trainable_variables]


def _network(model: Any, spec: DataSpec, layers: _Layers) -> keras.Model:
    if isinstance(model, LanguageModel) and model.projection is None:
        inputs = keras.Input((None,), dtype="int32", name="words")
        x = layers(keras.layers.Embedding, spec.vocabulary, model.units)(inputs)
        x = _stack(x, model.layers, model.units, layers)
        x = layers(keras.layers.Dense, spec.vocabulary)(x)
    elif isinstance(model, DisruptionModel):
        inputs, x = _disruption(model, spec, layers)
    elif isinstance(model, ClassifierModel) and not model.bidirectional:
        if spec.vocabulary:
            inputs = keras.Input((None,), dtype="int32", name="words")
            x = layers(keras.layers.Embedding, spec.vocabulary, model.embedding)(inputs)
        else:
            inputs = keras.Input((None, spec.channels), name="features")
            x = layers.cast(inputs)
        for i in range(model.convolutions):
            stride = model.stride if i == 0 else 1
            settings = {"strides": stride, "padding": "causal", "activation": "relu"}
            x = layers(keras.layers.Conv1D, model.filters, model.width, **settings)(x)
        x = _stack(x, model.layers, model.units, layers, model.cell)
        x = layers(keras.layers.Dense, spec.classes)(x)
    elif isinstance(model, ConvolutionalModel):
        inputs = keras.Input((spec.length, spec.channels), name="images")
        x = keras.ops.reshape(layers.cast(inputs), (-1, spec.length, spec.width, spec.channels // spec.width))
        for block in range(model.blocks):
            for _ in range(2):
                settings = {"padding": "same", "activation": "relu"}
                x = layers(keras.layers.Conv2D, model.filters * 2**block, 3, **settings)(x)
            x = keras.layers.MaxPooling2D(2)(x)
        x = layers(keras.layers.Dense, model.dense, activation="relu")(keras.layers.Flatten()(x))
        x = layers(keras.layers.Dense, spec.classes)(x)
    else:
        what = "model.projection" if isinstance(model, LanguageModel) else f"a model of the kind {model.kind}"
        if isinstance(model, ClassifierModel):
            what = "model.bidirectional"
        raise UserError(f"export: {what} has no counterpart among Keras's layers; its weights are in the checkpoint")
    return keras.Model(inputs, keras.ops.cast(x, "float32"), name=model.kind)


def _stack(x: Any, count: int, units: int, layers: _Layers, cell: str = "lstm") -> Any:
    kind = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[cell]
    for _ in range(count):
        x = layers(kind, units)(x)
    return x


def _disruption(model: DisruptionModel, spec: DataSpec, layers: _Layers) -> tuple[Any, Any]:
    inputs = keras.Input((None, spec.scalars + spec.profiles * spec.profile_points), name="features")
    x = layers.cast(inputs)
    if spec.profiles:
        # One convolution over [T, L] with kernels of one step: [B, T, L, C] all along, whatever T is.
        y = keras.layers.Reshape((-1, spec.profiles, spec.profile_points))(x[:, :, spec.scalars :])
        y = keras.ops.transpose(y, (0, 1, 3, 2))
        for i in range(3):
            filters = max(1, model.filters // 2**i)
            y = layers(keras.layers.Conv2D, filters, (1, 3))(y)
            y = layers(keras.layers.Conv2D, filters, (1, 1), activation="relu")(y)
            y = keras.layers.MaxPooling2D((1, 2))(y)
        y = keras.layers.Reshape((-1, y.shape[2] * y.shape[3]))(y)
        for width in (model.profile_dense, max(1, model.profile_dense // 4)):
            y = layers(keras.layers.Dense, width, activation="relu")(y)
        x = keras.ops.concatenate([x[:, :, : spec.scalars], y], axis=2)
    x = _stack(x, model.layers, model.units, layers)
    x = keras.ops.cast(layers(keras.layers.Dense, 1)(x)[:, :, 0], "float32")
    return inputs, keras.ops.sigmoid(x) if model.target == "binary" else x
