"""The trace of the loss scale against the rule worked out by hand."""

from __future__ import annotations

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.config import LossScaleConfig
from dist_mp.precision.loss_scale import LossScale


def trace(config: LossScaleConfig, flags: list[bool], precision: str = "fp16") -> list[float]:
    scale = LossScale(config, precision)
    values = []
    for flag in flags:
        scale.update(tf.constant(flag))
        values.append(float(scale.scale))
    return values


def test_halves_on_overflow_and_doubles_after_clean_steps() -> None:
    config = LossScaleConfig(mode="dynamic", initial=8.0, growth_interval=3)
    assert trace(config, [True, True, False, True, True, True, True]) == [8, 8, 4, 4, 4, 8, 8]


def test_floor_and_cap() -> None:
    config = LossScaleConfig(mode="dynamic", initial=2.0, growth_interval=1, floor=1.0, cap=8.0)
    assert trace(config, [False] * 3) == [1, 1, 1]
    assert trace(config, [True] * 4) == [4, 8, 8, 8]


def test_auto_by_precision() -> None:
    assert LossScale(LossScaleConfig(), "fp16").dynamic
    assert float(LossScale(LossScaleConfig(), "fp16").scale) == 2.0**15
    for precision in ("bf16", "fp32"):
        scale = LossScale(LossScaleConfig(), precision)
        assert not scale.dynamic
        assert float(scale.scale) == 1.0
        assert scale.at_floor


def test_constant_never_moves_but_counts() -> None:
    scale = LossScale(LossScaleConfig(mode="constant", initial=128.0), "fp16")
    for flag in (True, False, False):
        scale.update(tf.constant(flag))
    assert float(scale.scale) == 128.0
    assert (int(scale.applied_steps), int(scale.skipped_steps), int(scale.skips_in_a_row)) == (1, 2, 2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5))
def test_against_plain_python(flags: list[bool], interval: int) -> None:
    config = LossScaleConfig(mode="dynamic", initial=16.0, growth_interval=interval, floor=0.5, cap=64.0)
    scale, clean, expected = 16.0, 0, []
    for flag in flags:
        if not flag:
            scale, clean = max(scale / 2, 0.5), 0
        else:
            clean += 1
            if clean == interval:
                scale, clean = min(scale * 2, 64.0), 0
        expected.append(scale)
    assert trace(config, flags) == expected
