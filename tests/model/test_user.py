"""The user's own model: found, built in the run's precision, trained with the loss of the data; mistakes said."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import Config
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.build import build_task, initial_masters
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.train.step import TrainStep, Window
from tests.model.test_classifier import PRECISIONS, Local

ROWS, STEPS = 6, 5
CASES = {
    "sequence_classifier": DataSpec(STEPS, vocabulary=11, classes=3),
    "next_word": DataSpec(STEPS, vocabulary=11),
    "danger": DataSpec(STEPS, scalars=4),
}


def settings(name: str) -> Config:
    model = {"kind": "python", "function": f"tests.model.own_models:{name}"}
    return Config.model_validate({"model": model, "optimizer": {"name": "adam"}, "loss_scale": {"initial": 128.0}})


def example(spec: DataSpec) -> Window:
    rng = np.random.default_rng(0)
    weight = np.ones((ROWS, STEPS), np.float32)
    if spec.vocabulary:
        inputs = ((np.arange(STEPS) + np.arange(ROWS)[:, None]) % 11).astype(np.int32)
        targets = (inputs + 1) % 11
        if spec.classes:
            label = (np.arange(ROWS) % 3).astype(np.int32)
            inputs[:, 0], targets = label, np.repeat(label[:, None], STEPS, 1)
            weight[:, :-1] = 0.0
    else:
        inputs = rng.normal(size=(ROWS, STEPS, 4)).astype(np.float32)
        targets = np.where(inputs[:, :, 0] > 0, 1.0, -1.0).astype(np.float32)
    return Window(*(tf.constant(a) for a in (inputs, targets, weight, np.ones(ROWS, bool))))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_trains_with_the_loss_of_the_data(name, precision):
    config, spec, window = settings(name), CASES[name], example(CASES[name])
    task = build_task(config, spec, PRECISIONS[precision])
    assert task.variables[0].dtype.name == PRECISIONS[precision]
    initial, again = initial_masters(config, spec), initial_masters(config, spec)
    for a, b in zip(initial, again, strict=True):
        np.testing.assert_array_equal(a, b)
    masters = MasterWeights(task.model.trainable_variables, initial, config.optimizer)
    step = TrainStep(task, masters, LossScale(config.loss_scale, precision), Local(), num_workers=1)
    total, losses = tf.reduce_sum(window.weight), []
    for _ in range(60):
        result = step.update(window, [], total, tf.constant([1, 2]), tf.constant(0.05))
        losses.append(float(result.loss_sum / total))
        assert bool(result.finite)
    assert losses[-1] < 0.3 * losses[0], losses[::10]
    outputs, _ = task.forward(window.inputs, [], training=False, seed=tf.constant([0, 0]))
    assert task.scores(outputs).dtype == tf.float32
    assert outputs.shape[:2] == (ROWS, STEPS)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nowhere", "must be package.module:function"),
        ("no_such_package.models:build", "no module 'no_such_package'"),
        ("tests.model.own_models:nothing", "tests.model.own_models has no function 'nothing'"),
        ("tests.model.own_models:no_model", "must return a Keras model, got DataSpec"),
        ("tests.model.own_models:wrong_shape", r"must have the shape \[1, 5\] or \[1, 5, 1\], got \[1, 5, 7\]"),
    ],
)
def test_mistakes_are_said(function, message):
    config = Config.model_validate({"model": {"kind": "python", "function": function}})
    with pytest.raises(UserError, match=message):
        build_task(config, CASES["danger"], "float32")
