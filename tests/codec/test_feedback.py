"""Error feedback: nothing is lost over many steps, and a skipped step leaves no trace."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dist_mp.codec.base import Codec
from dist_mp.codec.feedback import ErrorFeedback
from dist_mp.codec.table import codec_by_name

SIZES = (300, 0, 1, 70)


def gradients(step: int, dtype: type = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    return [(rng.standard_normal(n) + 0.2).astype(dtype) for n in SIZES]


def sent(feedback: ErrorFeedback, codec: Codec, values: list[np.ndarray], loss_scale: float = 1.0) -> list[np.ndarray]:
    """What arrives of one step's gradients, without the loss scale."""
    arrived = []
    for index, value in enumerate(values):
        wire = np.empty(codec.wire_bytes(len(value)), np.uint8)
        feedback.encode(index, value, codec, wire, loss_scale)
        out = np.empty(len(value), np.float32)
        codec.decode(wire, out, 1 / loss_scale)
        arrived.append(out)
    return arrived


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["one_bit", "dynamic_tree", "linear", "fp8_e4m3", "fp16"])
def test_what_arrived_and_what_is_left_add_up_to_what_was_given(name: str, dtype: type) -> None:
    codec, feedback = codec_by_name(name, 64), ErrorFeedback(SIZES)
    given = [np.zeros(n) for n in SIZES]
    arrived = [np.zeros(n) for n in SIZES]
    for step in range(40):
        values = gradients(step, dtype)
        for total, value in zip(given, values, strict=True):
            total += value.astype(np.float64)
        for total, value in zip(arrived, sent(feedback, codec, values), strict=True):
            total += value
        feedback.commit()
    for total, got, left in zip(given, arrived, feedback.state(), strict=True):
        np.testing.assert_allclose(got + left, total, atol=2e-4)


def test_the_error_of_one_bit_is_made_good_by_feedback_and_adds_up_without() -> None:
    codec, feedback = codec_by_name("one_bit", 64), ErrorFeedback([64])
    value = np.linspace(-1, 1, 64).astype(np.float32)
    wire = np.empty(codec.wire_bytes(64), np.uint8)
    out, plain, fed = np.empty(64, np.float32), np.zeros(64), np.zeros(64)
    for _ in range(200):
        codec.encode(value, wire)
        codec.decode(wire, out)
        plain += out
        feedback.encode(0, value, codec, wire)
        codec.decode(wire, out)
        fed += out
        feedback.commit()
    error_without, error_with = (np.abs(total - 200 * value).max() for total in (plain, fed))
    assert error_without > 80 and error_with < error_without / 8


def test_a_skipped_step_leaves_the_residuals_as_they_were() -> None:
    codec = codec_by_name("dynamic_tree", 64)
    steady, skipping = ErrorFeedback(SIZES), ErrorFeedback(SIZES)
    for step in range(6):
        np.testing.assert_equal(sent(skipping, codec, gradients(step)), sent(steady, codec, gradients(step)))
        steady.commit()
        skipping.commit()
        overflow = gradients(100 + step)
        overflow[0][7] = np.inf
        sent(skipping, codec, overflow)
        skipping.discard()
        skipping.commit()  # nothing is pending
    np.testing.assert_equal(skipping.state(), steady.state())
    assert all(np.isfinite(r).all() for r in skipping.state()) and np.abs(steady.state()[0]).max() > 0


def test_residuals_do_not_depend_on_the_loss_scale() -> None:
    codec = codec_by_name("linear", 64)
    plain, scaled = ErrorFeedback(SIZES), ErrorFeedback(SIZES)
    for step, loss_scale in enumerate([2.0**15, 2.0**14, 2.0**3, 1.0]):
        values = gradients(step)
        one = sent(plain, codec, values)
        other = sent(scaled, codec, [v * np.float32(loss_scale) for v in values], loss_scale)
        np.testing.assert_equal(other, one)
        plain.commit()
        scaled.commit()
    np.testing.assert_equal(scaled.state(), plain.state())


def test_a_loaded_state_goes_on_as_the_saved_one() -> None:
    codec = codec_by_name("one_bit", 64)
    feedback, resumed = ErrorFeedback(SIZES), ErrorFeedback(SIZES)
    for step in range(3):
        sent(feedback, codec, gradients(step))
        feedback.commit()
    saved = feedback.state()
    sent(resumed, codec, gradients(50))  # pending, and dropped by load
    resumed.load(saved)
    resumed.commit()
    np.testing.assert_equal(sent(resumed, codec, gradients(3)), sent(feedback, codec, gradients(3)))
    np.testing.assert_equal(saved, resumed.state())
    with pytest.raises(ValueError, match="300"):
        resumed.load(saved[1:])
    with pytest.raises(ValueError, match="gradient 2"):
        resumed.encode(2, np.ones(3, np.float32), codec, np.empty(99, np.uint8))
