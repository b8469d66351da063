"""Curves of any length in few points: no peak is lost, no number made up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.experiments.report.axes import Axis, scale_axis, short, value_axis
from dist_mp.experiments.report.series import COLUMNS, thin

ANY = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY, max_size=120), st.integers(1, 30))
def test_extremes_and_gaps_survive(values: list[float], columns: int) -> None:
    y = np.array(values, dtype=np.float64)
    series = thin(0, "a", np.arange(len(y)), y, columns)
    finite = y[np.isfinite(y)]
    assert len(series.x) <= columns and series.values == len(y)
    assert series.missing.sum() == len(y) - len(finite)
    if finite.size:
        assert np.nanmin(series.low) == finite.min() and np.nanmax(series.high) == finite.max()
        assert series.last == finite[-1]
        good = np.isfinite(series.mean)
        assert good.any() and (series.low[good] <= series.mean[good]).all()
        assert (series.mean[good] <= series.high[good]).all()
    else:
        assert math.isnan(series.last) and not np.isfinite(series.mean).any()


def test_short_curves_are_as_they_are() -> None:
    series = thin(0, "a", [0, 1, 2], [3.0, 1.0, 2.0])
    assert series.mean.tolist() == [3.0, 1.0, 2.0] == series.low.tolist() and not series.thinned


def test_long_curves_have_stretches_of_equal_width() -> None:
    y = np.arange(100_000.0)
    series = thin(0, "a", np.arange(100_000), y)
    assert len(series.x) == COLUMNS and series.thinned
    assert series.mean[0] == pytest.approx(y[series.x[0] <= y][: int(series.x[1])].mean())
    widths = np.diff(series.x)
    assert widths.min() >= widths.max() - 1
    assert series.low[10] == series.x[10] and series.high[10] == series.x[11] - 1


def test_positions_that_are_unknown_are_left_out() -> None:
    series = thin(0, "a", [math.nan, 2.0, 1.0], [5.0, 6.0, 7.0])
    assert series.x.tolist() == [1.0, 2.0] and series.mean.tolist() == [7.0, 6.0]


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY, min_size=1, max_size=6), st.booleans())
def test_axes_hold_every_value(values: list[float], zero: bool) -> None:
    y = np.array(values)
    finite = y[np.isfinite(y)]
    for axis in (value_axis([y], 100.0, 0.0, zero=zero), scale_axis([y], 100.0, 0.0)):
        places = axis.place(finite)
        assert np.isfinite(places).all() and (places >= 0).all() and (places <= 100).all()
        assert len(axis.ticks()) <= 30
        for tick in axis.ticks():
            assert math.isfinite(tick) and axis.low - 1e-9 * abs(axis.low) <= tick <= axis.high + 1e-9 * abs(axis.high)
    order = np.argsort(finite)
    assert (np.diff(value_axis([y], 100.0, 0.0, zero=zero).place(finite[order])) <= 0).all()


def test_logarithmic_where_values_span_decades() -> None:
    assert value_axis([np.array([0.01, 5.0])], 0, 1).log
    assert not value_axis([np.array([0.0, 5.0])], 0, 1).log
    assert not value_axis([np.array([1.0, 5.0])], 0, 1).log
    assert Axis(0.0008, 5.0, 0, 1, log=True).ticks() == [0.001, 0.01, 0.1, 1.0]
    assert Axis(1.0, 2.0**10, 0, 1, log=True, binary=True).ticks() == [2.0**k for k in (0, 2, 4, 6, 8, 10)]
    assert Axis(0.0, 1.0, 0, 1).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0035, "0.0035"), (2.5e-4, "2.5e-4"), (12_500, "12.5k"), (1e6, "1M"), (-3.14159, "-3.142"),
     (math.nan, "n/a"), (math.inf, "n/a"), (1e300, "1e300"), (9999, "9999"), (-1e-12, "-1e-12")],
)  # fmt: skip
def test_numbers_in_few_characters(value: float, text: str) -> None:
    assert short(value) == text
