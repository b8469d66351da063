"""Exported models compute what ours do, from files that load without dist_mp."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import Config
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.build import build_task
from dist_mp.train.checkpoint_files import (
    FOLDER,
    Checkpoint,
    begin_checkpoint,
    finish_checkpoint,
    open_checkpoint,
    write_manifest,
    write_tensors,
)
from dist_mp.train.export import export_checkpoint, keras_model
from tests.train.test_checkpoint_files import manifest

WORDS = DataSpec(length=6, vocabulary=11)
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], DataSpec]] = {
    "language": ({"kind": "language", "layers": 2, "units": 5}, {"kind": "text", "path": "x"}, WORDS),
    "disruption": (
        {"kind": "disruption", "layers": 2, "units": 5, "filters": 4, "profile_dense": 8, "target": "binary"},
        {"kind": "campaign"},
        DataSpec(length=6, scalars=3, profiles=2, profile_points=24),
    ),
    "scalars": ({"kind": "disruption", "units": 5}, {"kind": "campaign"}, DataSpec(length=6, scalars=3)),
    "words": (
        {"kind": "classifier", "cell": "gru", "units": 5, "embedding": 4},
        {"kind": "labelled"},
        DataSpec(length=6, vocabulary=11, classes=3),
    ),
    "series": (
        {"kind": "classifier", "units": 5, "convolutions": 2, "filters": 4, "width": 3},
        {"kind": "labelled"},
        DataSpec(length=6, channels=4, classes=3),
    ),
    "images": (
        {"kind": "convolutional", "filters": 3, "dense": 5},
        {"kind": "labelled"},
        DataSpec(length=8, width=8, channels=24, classes=3),
    ),
}


def made(name: str, precision: str = "float32") -> tuple[Config, DataSpec, Any, dict[str, Any]]:
    """Settings, shapes, our task with weights that are nowhere near their initial values, and these weights."""
    model, data, spec = MODELS[name]
    config = Config.model_validate({"model": model, "data": data})
    task = build_task(config, spec, precision)
    rng = np.random.default_rng(4)
    weights = {}
    for path, variable in zip(task.paths, task.variables, strict=True):
        weights[path] = rng.normal(0, 0.3, variable.shape).astype(np.float32)
        variable.assign(tf.cast(weights[path], variable.dtype))
    return config, spec, task, weights


def inputs_for(spec: DataSpec, length: int) -> Any:
    rng = np.random.default_rng(5)
    if spec.vocabulary:
        return rng.integers(0, spec.vocabulary, (3, length)).astype(np.int32)
    features = spec.channels or spec.scalars + spec.profiles * spec.profile_points
    return rng.normal(0, 1, (3, length, features)).astype(np.float32)


def ours(task: Any, name: str, inputs: Any) -> Any:
    """Outputs of our model from zero state, as the exported model gives them."""
    outputs, _ = task.forward(tf.constant(inputs), task.initial_state(3), training=False, seed=tf.zeros(2, tf.int32))
    outputs = task.scores(outputs) if name in ("disruption", "scalars") else tf.cast(outputs, tf.float32)
    if name == "language":
        outputs = tf.transpose(outputs, (1, 0, 2))
    return outputs[:, 0].numpy() if name == "images" else outputs.numpy()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 5e-2)])
def test_the_same_outputs(name: str, dtype: str, bound: float) -> None:
    config, spec, task, weights = made(name)
    model = keras_model(config, spec, weights, dtype)
    assert {str(v.dtype) for v in model.trainable_variables} == {dtype}
    inputs = inputs_for(spec, spec.length)
    got, wanted = model(inputs).numpy(), ours(task, name, inputs)
    assert got.dtype == np.float32 and got.shape == wanted.shape
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(got, wanted, atol=bound * max(1.0, np.abs(wanted).max()))


def checkpoint_of(
    run: Path, config: Config, spec: DataSpec, weights: dict[str, Any], own: dict[str, Any] | None = None
) -> Checkpoint:
    folder = begin_checkpoint(run / FOLDER, 7)
    contents = {"masters.safetensors": weights, "rank-00000.safetensors": own or {}}
    files = {name: write_tensors(folder / name, tensors) for name, tensors in contents.items()}
    write_manifest(folder, manifest(7, config=config.model_dump(), spec=asdict(spec), files=files))
    return open_checkpoint(finish_checkpoint(folder))


LOAD = """
import sys, numpy as np, keras, tensorflow as tf
inputs = np.load("inputs.npy")
np.save("keras.npy", keras.models.load_model("out/model.keras")(inputs))
saved = tf.saved_model.load("out/saved_model")
np.save("saved.npy", saved.serve(inputs))
assert not [name for name in sys.modules if name.startswith("dist_mp")]
"""


@pytest.mark.timeout(200)
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of Keras's own, when it saves
def test_files_load_without_dist_mp(tmp_path: Path) -> None:
    """In another process; with another number of steps than in training."""
    config, spec, task, weights = made("disruption")
    checkpoint = checkpoint_of(tmp_path / "run", config, spec, weights)
    export_checkpoint(checkpoint, tmp_path / "out", "fp32")
    inputs = inputs_for(spec, 9)
    np.save(tmp_path / "inputs.npy", inputs)
    subprocess.run([sys.executable, "-c", LOAD], cwd=tmp_path, check=True, timeout=150, capture_output=True)
    for name in ("keras", "saved"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), ours(task, "disruption", inputs), atol=1e-5)
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        export_checkpoint(checkpoint, tmp_path / "out")


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_a_model_of_ones_own(tmp_path: Path) -> None:
    """With what it keeps beside its trained weights."""
    model, spec = (
        {"kind": "python", "function": "tests.model.own_models:normalised"},
        DataSpec(6, channels=4, classes=3),
    )
    config = Config.model_validate({"model": model, "data": {"kind": "labelled"}})
    task = build_task(config, spec, "float32")
    rng = np.random.default_rng(6)
    for variable in task.model.variables:
        if "seed" not in variable.path:
            variable.assign(rng.uniform(0.5, 2.0, variable.shape))
    weights = dict(zip(task.paths, (v.numpy() for v in task.variables), strict=True))
    kept = task.model.non_trainable_variables
    own = {f"model/{number:04d} {variable.name}": variable.numpy() for number, variable in enumerate(kept)}
    assert len(own) == 3, "mean, variance, and the seed of the dropout"
    export_checkpoint(checkpoint_of(tmp_path / "run", config, spec, weights, own), tmp_path / "out")
    exported = keras.models.load_model(tmp_path / "out" / "model.keras")
    inputs = inputs_for(spec, 6)
    np.testing.assert_allclose(exported(inputs), task.model(inputs), rtol=1e-6)


def test_what_keras_has_no_layer_for(tmp_path: Path) -> None:
    config = Config.model_validate({"model": {"kind": "language", "projection": 3}, "data": {"kind": "text"}})
    task = build_task(config, WORDS, "float32")
    weights = dict(zip(task.paths, (v.numpy() for v in task.variables), strict=True))
    checkpoint = checkpoint_of(tmp_path, config, WORDS, weights)
    with pytest.raises(UserError, match=r"export: model\.projection has no counterpart among Keras's layers"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()
