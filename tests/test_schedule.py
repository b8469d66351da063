"""The learning rate: a table of the rules, and the order of warm-up, decay and cap."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_mp.config import ScheduleConfig
from dist_mp.schedule import learning_rate, worker_rate

WORKERS = (1, 2, 4, 16, 64, 128, 6000)
# base * n / (1 + n / 100) with base = 1, worked out as exact fractions n * 100 / (100 + n).
DAMPED = (100 / 101, 200 / 102, 400 / 104, 1600 / 116, 6400 / 164, 12800 / 228, 600000 / 6100)


@pytest.mark.parametrize(("workers", "expected"), list(zip(WORKERS, DAMPED, strict=True)))
def test_damped(workers: int, expected: float) -> None:
    config = ScheduleConfig(rule="damped", base=1.0)
    assert worker_rate(config, workers) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("workers", WORKERS)
def test_comparison_rules(workers: int) -> None:
    for rule, expected in (("linear", workers), ("sqrt", math.sqrt(workers)), ("constant", 1.0)):
        assert worker_rate(ScheduleConfig(rule=rule, base=0.25), workers) == 0.25 * expected


def test_damped_saturates() -> None:
    config = ScheduleConfig(rule="damped", base=2e-5, half_workers=100.0)
    assert worker_rate(config, 100) == pytest.approx(2e-5 * 50)
    assert worker_rate(config, 6000) < 2e-5 * 100


@given(st.floats(1e-8, 10.0), st.floats(0.5, 1e4), st.sampled_from(["damped", "linear", "sqrt", "constant"]))
def test_normalized_single_worker_is_base_to_the_bit(base: float, half: float, rule: str) -> None:
    config = ScheduleConfig(rule=rule, base=base, half_workers=half, normalize=True)
    assert learning_rate(config, 0, 0, 1) == base


def test_warmup_rises_from_one_worker() -> None:
    config = ScheduleConfig(rule="linear", base=0.1, warmup_steps=10)
    rates = [learning_rate(config, s, 0, 8) for s in range(12)]
    assert rates[0] == 0.1
    assert rates[5] == pytest.approx(0.45)
    assert rates[10] == rates[11] == pytest.approx(0.8)
    assert rates[:11] == sorted(rates[:11])


def test_decay_then_cap() -> None:
    config = ScheduleConfig(rule="linear", base=1.0, decay=0.5, decay_after=1, cap=1.5)
    assert [learning_rate(config, 100, e, 4) for e in range(5)] == [1.5, 1.5, 1.5, 1.0, 0.5]


def test_no_workers_is_a_bug() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        worker_rate(ScheduleConfig(), 0)
