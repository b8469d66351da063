"""The code books against the values that their sources give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dist_mp.codec.book import CodeBook, nearest_bounds
from dist_mp.codec.dettmers import dynamic_tree, linear, mantissa, static_tree
from dist_mp.codec.dynamic_map import dynamic_uniform
from dist_mp.codec.fp8 import fp8_e4m3, fp8_e5m2

BOOKS = [dynamic_tree, linear, static_tree, mantissa, dynamic_uniform, fp8_e4m3, fp8_e5m2]


def test_dynamic_tree_has_the_published_values() -> None:
    magnitudes = dynamic_tree().magnitudes
    assert len(magnitudes) == 128
    np.testing.assert_allclose(magnitudes[:7], [0, 2.75e-6, 7.25e-6, 1.875e-5, 3.625e-5, 5.875e-5, 8.625e-5], rtol=1e-6)
    np.testing.assert_allclose(magnitudes[-2:], [0.99140625, 1], rtol=1e-7)
    assert np.isclose(magnitudes, 0.23671875).any()  # the paper's example
    for zeros in range(6):
        in_decade = (magnitudes > 10.0 ** -(zeros + 1)) & (magnitudes < 10.0**-zeros)
        assert in_decade.sum() == 2 ** (6 - zeros)
        assert (magnitudes[in_decade] < 0.45 * 10.0**-zeros).sum() == 2 ** (5 - zeros)


def test_dynamic_tree_rounds_to_zero_and_to_the_maximum_as_published() -> None:
    bounds = dynamic_tree().bounds
    np.testing.assert_allclose(bounds[[0, -1]], [1.5e-6, 0.995703125], rtol=1e-6)


def test_static_tree_and_mantissa_have_the_published_values() -> None:
    static = static_tree().magnitudes.astype(np.float64) * 92.25
    np.testing.assert_allclose(
        static[-16:-6], 10 * np.array([1, 1.4375, 1.875, 2.3125, 2.75, 3.1875, 3.625, 4.0625, 4.5, 5.175])
    )
    assert len(static) == 128 and static[0] == 0
    values = {round(m * 10.0**e) for m in range(16) for e in range(8)}
    np.testing.assert_allclose(mantissa().magnitudes * 1.5e8, sorted(values), rtol=1e-6)


def test_dynamic_uniform_has_the_values_of_create_dynamic_map() -> None:
    magnitudes = dynamic_uniform().magnitudes
    expected = [0.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2**i + 1)
        expected += list(10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2)
    np.testing.assert_allclose(magnitudes, np.sort(expected), rtol=1e-6)
    assert magnitudes[1] == np.float32(5.5e-7) and dynamic_uniform().top == 1.0


@pytest.mark.parametrize("make", BOOKS)
def test_magnitudes_ascend_and_bounds_separate_them(make: Callable[[], CodeBook]) -> None:
    book = make()
    assert book.magnitudes[0] == 0 and (np.diff(book.magnitudes) > 0).all()
    assert book.magnitudes.dtype == book.bounds.dtype == np.float32
    n = len(book.magnitudes)
    assert (book.magnitudes[:-1] < book.bounds[: n - 1]).all() and (book.bounds[: n - 1] <= book.magnitudes[1:]).all()
    assert len(book.bounds) == n - (book.top is None)


def test_ties_go_up_or_to_the_even_code() -> None:
    magnitudes = np.array([0, 1, 2, 4], np.float32)
    np.testing.assert_array_equal(nearest_bounds(magnitudes), np.array([0.5, 1.5, 3], np.float32))
    after = np.nextafter(np.array([0.5, 3], np.float32), np.float32(9))
    np.testing.assert_array_equal(nearest_bounds(magnitudes, ties_to_even=True), [after[0], 1.5, after[1]])
