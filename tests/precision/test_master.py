"""Masters keep what a 16-bit weight loses, for every optimizer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import OptimizerConfig
from dist_mp.precision.master import MasterWeights, make_optimizer

OPTIMIZERS = ["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad"]
SIXTEEN = ["float16", "bfloat16"]


def make(dtype: str, name: str = "sgd", enabled: bool = True, value: float = 1.0) -> MasterWeights:
    working = [keras.Variable(np.zeros((2, 3)), dtype=dtype), keras.Variable(np.zeros(5), dtype=dtype)]
    initial = [np.full((2, 3), value, np.float32), np.linspace(0.1, 0.9, 5, dtype=np.float32)]
    return MasterWeights(working, initial, OptimizerConfig(name=name), enabled)


def run(weights: MasterWeights, steps: int, gradient: float, rate: float) -> None:
    gradients = [tf.fill((2, 3), gradient), tf.fill((5,), gradient)]

    @tf.function
    def step() -> None:
        weights.apply(gradients, tf.constant(rate))

    for _ in range(steps):
        step()


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_small_updates_are_kept_with_masters_and_lost_without(dtype: str) -> None:
    """200 updates of 1e-4 on a weight of 1.0: half a unit in the last place is 4.9e-4 in fp16, 3.9e-3 in bfloat16."""
    kept, lost = make(dtype), make(dtype, enabled=False)
    run(kept, 200, -1.0, 1e-4)
    run(lost, 200, -1.0, 1e-4)
    np.testing.assert_allclose(kept.values()[0], 1.02, rtol=1e-5)
    rounded = tf.cast(kept.values()[0], dtype)
    assert float(rounded[0, 0]) > 1.0
    np.testing.assert_array_equal(np.asarray(kept.working[0]).astype(np.float32), rounded.numpy().astype(np.float32))
    np.testing.assert_array_equal(np.asarray(lost.working[0]).astype(np.float32), 1.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masters_move_as_in_fp32(name: str) -> None:
    """The optimizer sees FP32 alone: its masters are those of an FP32 run with the same gradients, to the bit."""
    single, half = make("float32", name), make("float16", name)
    run(single, 5, 0.3, 0.01)
    run(half, 5, 0.3, 0.01)
    for a, b, w in zip(single.values(), half.values(), half.working, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.asarray(w), a.astype(np.float16))
    assert not np.array_equal(single.values()[1], np.linspace(0.1, 0.9, 5, dtype=np.float32))


def test_fp32_has_no_second_copy() -> None:
    weights = make("float32")
    assert not weights.separate
    assert weights.masters[0] is weights.working[0]


def test_initial_values_are_rounded_once() -> None:
    weights = make("bfloat16", value=1.0 + 2.0**-9)
    assert weights.values()[0][0, 0] == np.float32(1.0 + 2.0**-9)
    assert float(tf.cast(weights.working[0].value, tf.float32)[0, 0]) == 1.0


def test_learning_rate_is_the_one_given() -> None:
    weights = make("float16", value=0.0)
    run(weights, 1, 1.0, 0.125)
    run(weights, 1, 1.0, 0.5)
    np.testing.assert_array_equal(weights.values()[0], -0.625)


def test_settings_that_were_written_out_make_the_same_optimizer() -> None:
    """RMSprop has momentum only where it is asked for, also when a run's config.yaml is run again."""
    for name, momentum in (("rmsprop", 0.0), ("momentum", 0.9), ("nesterov", 0.9)):
        given = OptimizerConfig(name=name)
        again = OptimizerConfig.model_validate(given.model_dump())
        assert make_optimizer(given).momentum == make_optimizer(again).momentum == momentum
    assert make_optimizer(OptimizerConfig(name="rmsprop", momentum=0.5)).momentum == 0.5
