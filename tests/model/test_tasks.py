"""The models as the training step sees them: variables, state, losses, initial values."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import Config, DisruptionModel, LanguageModel, TextData
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model.base import reset_rows
from dist_mp.model.build import assign_working, build_task, initial_masters

ROWS, STEPS = 3, 6
PRECISIONS = ["float16", "bfloat16", "float32"]
SPECS = {
    "language": DataSpec(STEPS, vocabulary=11),
    "disruption": DataSpec(STEPS, scalars=3, profiles=2, profile_points=24),
    "scalars": DataSpec(STEPS, scalars=3),
    "profile": DataSpec(STEPS, profiles=1, profile_points=64),
}
SEED = tf.constant([1, 2])


def settings(kind: str, dropout: float = 0.0, target: str = "hinge", seed: int = 1, init_scale: float = 0.5) -> Config:
    if kind == "language":
        model = LanguageModel(units=8, dropout=dropout, init_scale=init_scale)
        return Config(data=TextData(path="x"), model=model, seed=seed)
    return Config(model=DisruptionModel(units=8, filters=8, dropout=dropout, target=target), seed=seed)


def example(kind: str, target: str = "hinge") -> tuple[tf.Tensor, tf.Tensor]:
    """Inputs and targets of a window."""
    rng = np.random.default_rng(3)
    spec = SPECS[kind]
    if kind == "language":
        return tuple(tf.constant(rng.integers(0, 11, (ROWS, STEPS)), tf.int32) for _ in range(2))
    features = spec.scalars + spec.profiles * spec.profile_points
    positive = rng.random((ROWS, STEPS)) < 0.5
    labels = {"binary": (1, 0), "ttd": (-0.4, -2.3)}.get(target, (1, -1))
    return tf.constant(rng.normal(size=(ROWS, STEPS, features)), tf.float32), tf.constant(
        np.where(positive, *labels), tf.float32
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", SPECS)
def test_variables_gradients_and_state_have_the_promised_types(kind, precision):
    task = build_task(settings(kind, dropout=0.3), SPECS[kind], precision)
    inputs, targets = example(kind)
    assert {v.dtype.name for v in task.variables} == {precision}
    assert len(set(task.paths)) == len(task.paths) == len(task.variables)

    @tf.function
    def step(state):
        with tf.GradientTape() as tape:
            outputs, after = task.forward(inputs, state, training=True, seed=SEED)
            losses = task.losses(outputs, targets, tf.ones((ROWS, STEPS)))
            loss = tf.reduce_mean(losses)
        return losses, tape.gradient(loss, task.variables), after

    before = task.initial_state(ROWS)
    losses, gradients, after = step(before)
    assert losses.dtype == tf.float32 and losses.shape == (ROWS, STEPS)
    assert [(s.dtype, s.shape) for s in before] == [(s.dtype, s.shape) for s in after]
    assert [s.dtype.name for s in after] == [precision, "float32"] * 2
    for variable, gradient in zip(task.variables, gradients, strict=True):
        assert isinstance(gradient, tf.Tensor) and gradient.dtype == variable.dtype
        assert gradient.shape == variable.shape
        assert np.all(np.isfinite(np.asarray(gradient, np.float32)))
    assert np.any(np.asarray(gradients[0], np.float32) != 0)


@pytest.mark.parametrize("kind", ["language", "disruption"])
def test_carried_state_continues_and_reset_rows_begin_anew(kind):
    task = build_task(settings(kind), SPECS[kind], "float32")
    inputs, _ = example(kind)
    time = 0 if kind == "language" else 1

    def run(part, state):
        outputs, state = task.forward(part, state, training=False, seed=SEED)
        return np.moveaxis(outputs.numpy(), 0, 1) if time == 0 else outputs.numpy(), state

    whole, end = run(inputs, task.initial_state(ROWS))
    first, middle = run(inputs[:, :4], task.initial_state(ROWS))
    second, state = run(inputs[:, 4:], middle)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, atol=1e-6)
    for a, b in zip(state, end, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    anew, _ = run(inputs[:, 4:], reset_rows(middle, tf.constant([False, True, False])))
    fresh, _ = run(inputs[:, 4:], task.initial_state(ROWS))
    np.testing.assert_allclose(anew[[0, 2]], second[[0, 2]], atol=1e-6)
    np.testing.assert_allclose(anew[1], fresh[1], atol=1e-6)
    assert np.abs(second[1] - fresh[1]).max() > 1e-4


@pytest.mark.parametrize("kind", ["language", "disruption"])
def test_dropout_depends_on_the_seed_and_only_in_training(kind):
    task = build_task(settings(kind, dropout=0.5), SPECS[kind], "float32")
    inputs, _ = example(kind)

    def run(seed, training):
        return task.forward(inputs, task.initial_state(ROWS), training=training, seed=tf.constant(seed))[0].numpy()

    np.testing.assert_array_equal(run([1, 2], True), run([1, 2], True))
    assert np.any(run([1, 2], True) != run([1, 3], True))
    np.testing.assert_array_equal(run([1, 2], False), run([1, 3], False))


@pytest.mark.parametrize("kind", ["language", "disruption"])
def test_initial_values_are_one_draw_rounded_once(kind):
    masters = initial_masters(settings(kind), SPECS[kind])
    again = initial_masters(settings(kind), SPECS[kind])
    other = initial_masters(settings(kind, seed=2), SPECS[kind])
    for a, b in zip(masters, again, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b)
    assert any(np.any(a != b) for a, b in zip(masters, other, strict=True))
    kernels = [m for m in masters if m.ndim > 1]
    assert len({m.reshape(-1)[:2].tobytes() for m in kernels}) == len(kernels)
    for precision in PRECISIONS:
        task = build_task(settings(kind), SPECS[kind], precision)
        for path, variable, master in zip(task.paths, task.variables, masters, strict=True):
            np.testing.assert_array_equal(variable, tf.cast(master, precision), err_msg=path)
            if path.endswith("lstm_cell/bias"):
                np.testing.assert_array_equal(master, np.repeat([0, 1, 0, 0], 8))
        assign_working(task, [m * 0 + k for k, m in enumerate(masters)])
        assert [float(tf.reduce_max(v)) for v in task.variables] == list(range(len(masters)))


def test_language_weights_start_within_the_scale():
    masters = initial_masters(settings("language", init_scale=0.05), SPECS["language"])
    assert max(np.abs(m).max() for m in masters if m.ndim > 1) <= 0.05
    assert np.abs(masters[0]).max() > 0.04


def test_language_loss_of_equal_logits_is_the_logarithm_of_the_vocabulary():
    task = build_task(settings("language"), SPECS["language"], "float32")
    _, targets = example("language")
    losses = task.losses(tf.zeros((STEPS, ROWS, 11)), targets, tf.ones((ROWS, STEPS)))
    np.testing.assert_allclose(losses, np.full((ROWS, STEPS), np.log(11)), rtol=1e-6)
    one = tf.one_hot(tf.transpose(targets), 11) * 4.0
    expected = np.log(np.exp(4.0) + 10) - 4.0
    np.testing.assert_allclose(task.losses(one, targets, tf.ones((ROWS, STEPS))), expected, rtol=1e-5)


def test_language_with_blocks_recomputation_or_both_trains_as_without():
    inputs, targets = example("language")
    results = []
    for change in ({}, {"softmax_block": 4}, {"recompute": True}, {"softmax_block": 4, "recompute": True}):
        config = settings("language")
        model = config.model.model_copy(update=change)
        task = build_task(config.model_copy(update={"model": model}), SPECS["language"], "float32")
        with tf.GradientTape() as tape:
            outputs, _ = task.forward(inputs, task.initial_state(ROWS), training=True, seed=SEED)
            losses = task.losses(outputs, targets, tf.ones((ROWS, STEPS)))
            loss = tf.reduce_sum(losses * tf.cast(tf.range(STEPS), tf.float32))
        results.append([losses, task.scores(outputs), *tape.gradient(loss, task.variables)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


Y = np.array([[0.3, -2.0, 1.7, 0.9], [4.0, -50.0, 60.0, 0.0], [9.0, 9.0, 9.0, 9.0]], np.float32)
WEIGHT = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], np.float32)


def expected_losses(target: str, label: np.ndarray) -> np.ndarray:
    hinge = np.maximum(0, 1 - label * Y)
    match target:
        case "hinge":
            losses = hinge
        case "maxhinge":
            losses = np.zeros_like(Y)
            losses[0, 2], losses[1, 2] = 3 * hinge[0, 2], 4 * hinge[1, 2]
        case "binary":
            y = Y.astype(np.float64)
            losses = np.logaddexp(0, y) - y * label
        case "ttd":
            losses = (Y - label) ** 2
    return losses * WEIGHT


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("target", ["hinge", "maxhinge", "binary", "ttd"])
def test_disruption_losses_equal_numpy_and_ignore_padding(target, precision):
    task = build_task(settings("scalars", target=target), SPECS["scalars"], precision)
    positive = np.array([[1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 0, 0]], bool)
    labels = {"binary": (1.0, 0.0), "ttd": (-0.4, -2.3)}.get(target, (1.0, -1.0))
    label = np.where(positive, *labels).astype(np.float32)
    outputs = tf.cast(Y, precision)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        losses = task.losses(outputs, label, WEIGHT)
        loss = tf.reduce_sum(losses)
    assert losses.dtype == tf.float32
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}[precision]
    np.testing.assert_allclose(losses, expected_losses(target, label), rtol=tolerance, atol=tolerance)
    gradient = np.asarray(tape.gradient(loss, outputs), np.float32)
    np.testing.assert_array_equal(gradient[WEIGHT == 0], 0.0)
    assert np.any(gradient != 0)


@pytest.mark.parametrize("target", ["hinge", "maxhinge", "binary", "ttd"])
def test_padding_that_is_not_finite_leaves_loss_and_gradient_clean(target):
    task = build_task(settings("scalars", target=target), SPECS["scalars"], "float32")
    outputs = tf.constant(np.where(WEIGHT > 0, Y, np.inf))
    targets = tf.constant(np.where(WEIGHT > 0, 1.0, np.nan).astype(np.float32))
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        losses = task.losses(outputs, targets, WEIGHT)
        loss = tf.reduce_sum(losses)
    assert np.all(np.isfinite(losses)) and np.all(losses.numpy()[2] == 0)
    gradient = tape.gradient(loss, outputs).numpy()
    assert np.all(np.isfinite(gradient)) and np.all(gradient[WEIGHT == 0] == 0)


@pytest.mark.parametrize("target", ["hinge", "maxhinge", "binary", "ttd"])
def test_a_larger_score_means_more_danger(target):
    task = build_task(settings("scalars", target=target), SPECS["scalars"], "float16")
    scores = task.scores(tf.constant([[-3.0, 0.5, 2.0]], tf.float16))
    assert scores.dtype == tf.float32
    assert np.all(np.diff(scores.numpy()) > 0)


def test_profiles_enter_through_the_convolutions_in_their_order():
    """A change of one point of the second profile changes the output; scalars come first."""
    task = build_task(settings("disruption"), SPECS["disruption"], "float32")
    inputs = example("disruption")[0].numpy()
    profiles = task.model.profiles
    alone = profiles.call(tf.constant(inputs[0, :, 3:]))
    grid = inputs[0, :, 3:].reshape(STEPS, 2, 24).transpose(0, 2, 1)
    first = profiles.convolutions[0](tf.constant(grid))
    kernel = profiles.convolutions[0].kernel.numpy()
    by_hand = sum(grid[:, k : k + 22] @ kernel[k] for k in range(3))
    np.testing.assert_allclose(first, by_hand, atol=1e-5)
    assert alone.shape == (STEPS, 8)


def test_too_few_profile_points_are_refused():
    spec = DataSpec(STEPS, scalars=1, profiles=1, profile_points=21)
    with pytest.raises(UserError, match=r"data.profile_points is 21, .* at least 22 points"):
        build_task(settings("disruption"), spec, "float32")
