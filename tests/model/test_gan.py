"""The adversarial network: each network's gradient is that of its own loss, numerics, learning, its metric."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import Config, GanModel
from dist_mp.data.base import Batch, DataSpec
from dist_mp.errors import UserError
from dist_mp.model.build import build_task, initial_masters
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.train.generation import ImageCollector, sliced_wasserstein
from dist_mp.train.step import TrainStep, Window
from tests.model.test_classifier import PRECISIONS, Local

ROWS, SIDE = 6, 8
SPEC = DataSpec(SIDE, channels=SIDE, width=SIDE, classes=2)
SEED = tf.constant([3, 4])


def settings() -> Config:
    return Config.model_validate(
        {
            "data": {"kind": "labelled", "format": "shapes"},
            "model": GanModel(filters=4, noise=5).model_dump(),
            "optimizer": {"name": "adam", "beta_1": 0.5},
            "loss_scale": {"initial": 8.0},
        }
    )


def example(rows: int = ROWS) -> Window:
    """Images of a bright half, and an idle row at the end."""
    rng = np.random.default_rng(0)
    images = rng.normal(scale=0.2, size=(rows, SIDE, SIDE)).astype(np.float32)
    images[:, :4] += 1.5
    weight = np.zeros((rows, SIDE), np.float32)
    weight[:-1, -1] = 1.0
    images[-1] = 0.0
    return Window(*(tf.constant(a) for a in (images, np.zeros((rows, SIDE), np.int32), weight, np.ones(rows, bool))))


def test_each_networks_gradient_is_that_of_its_own_loss() -> None:
    task, window = build_task(settings(), SPEC, "float64"), example()
    network, valid = task.model, tf.cast(window.weight[:, -1], tf.float64)
    noise, images = task.noise(window.inputs, SEED), tf.cast(window.inputs, tf.float64)[..., None]
    generator = [v for v, path in zip(task.variables, task.paths, strict=True) if "generator" in path]
    judge = [v for v, path in zip(task.variables, task.paths, strict=True) if "discriminator" in path]
    assert len(generator) + len(judge) == len(task.variables) and len(generator) == len(judge) == 8
    with tf.GradientTape(persistent=True) as tape:
        outputs, _ = task.forward(window.inputs, [], training=True, seed=SEED)
        together = tf.reduce_sum(tf.cast(task.losses(outputs, window.targets, window.weight), tf.float64))
        made = network.generate(noise)
        fake = network.discriminate(made)
        of_judge = tf.nn.softplus(-network.discriminate(images)) + tf.nn.softplus(fake)
        of_judge, of_generator = (tf.reduce_sum(v * valid) for v in (of_judge, tf.nn.softplus(-fake)))
    assert float(together) == pytest.approx(float(of_judge + of_generator), rel=1e-6)
    for variables, loss in ((judge, of_judge), (generator, of_generator)):
        pairs = zip(tape.gradient(together, variables), tape.gradient(loss, variables), strict=True)
        for a, b in pairs:
            assert np.abs(b).max() > 0
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    other = tape.gradient(of_judge, generator)
    assert any(np.abs(g).max() > 1e-3 for g in other), "without the cut the generator would help the discriminator"


def test_generator_gradient_equals_finite_differences_in_float64() -> None:
    task, window = build_task(settings(), SPEC, "float64"), example()

    def loss() -> tf.Tensor:
        return tf.reduce_sum(task.forward(window.inputs, [], training=True, seed=SEED)[0].fooled)

    generator = [v for v, path in zip(task.variables, task.paths, strict=True) if "generator" in path]
    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(generator, tape.gradient(value, generator), strict=True):
        start = variable.numpy()
        position = start.size // 2
        sides = []
        for sign in (1, -1):
            moved = start.copy().reshape(-1)
            moved[position] += sign * 1e-6
            variable.assign(moved.reshape(start.shape))
            sides.append(float(loss()))
        variable.assign(start)
        # The convolutions' products are float64; leaky ReLU has kinks.
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(gradient.numpy().reshape(-1)[position], abs=1e-5)


def test_images_do_not_depend_on_their_neighbours_and_noise_on_the_seed() -> None:
    task, window = build_task(settings(), SPEC, "float32"), example()
    noise = task.noise(window.inputs, SEED)
    np.testing.assert_array_equal(noise, task.noise(window.inputs, SEED))
    assert np.any(noise != task.noise(window.inputs, tf.constant([3, 5])))
    assert np.any(noise != task.noise(window.inputs + 1.0, SEED))
    whole = task.model.generate(noise)
    np.testing.assert_allclose(task.model.generate(noise[2:3])[0], whole[2], atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_generated_images_near_the_real_ones(precision: str) -> None:
    config, window = settings(), example(24)
    task = build_task(config, SPEC, PRECISIONS[precision])
    assert {v.dtype.name for v in task.variables} == {PRECISIONS[precision]}
    masters = MasterWeights(task.model.trainable_variables, initial_masters(config, SPEC), config.optimizer)
    step = TrainStep(task, masters, LossScale(config.loss_scale, precision), Local(), num_workers=1)
    batch = Batch(*(a.numpy() for a in window))

    def distance() -> float:
        collector = ImageCollector()
        outputs, _ = task.forward(window.inputs, [], training=False, seed=SEED)
        collector.add(batch, task.scores(outputs).numpy())
        return collector.metrics(Alone(), 0.0)["sliced_wasserstein"]

    start = distance()
    for number in range(120):
        result = step.update(window, [], tf.constant(23.0), tf.constant([number, 1]), tf.constant(0.002))
        assert bool(result.finite)
    assert distance() < 0.5 * start


class Alone:
    """What a collector needs of a world of one rank."""

    def allgather(self, own):
        return [own]


def test_distance_of_shifted_samples_is_the_mean_shift_along_the_directions() -> None:
    rng = np.random.default_rng(0)
    sample = rng.normal(size=(400, 3))
    assert sliced_wasserstein(sample, sample[rng.permutation(400)]) == pytest.approx(0.0, abs=1e-12)
    # The mean of |cos| over the sphere in three dimensions is one half.
    assert sliced_wasserstein(sample, sample + np.array([3.0, 0.0, 0.0])) == pytest.approx(1.5, rel=0.1)
    assert np.isnan(sliced_wasserstein(sample[:0], sample)) and np.isnan(sliced_wasserstein(sample, sample * np.nan))


def test_data_that_are_no_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.kind gan needs images"):
        build_task(settings(), DataSpec(8, channels=3, classes=2), "float32")
    with pytest.raises(UserError, match="multiples of 4, got 8 x 6"):
        build_task(settings(), DataSpec(8, channels=6, width=6, classes=2), "float32")
