"""Stochastic rounding: kernels against the reference, right in the mean, the same in every rerun."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from dist_mp.codec.block import BlockCodec
from dist_mp.codec.reference import reference_codecs
from dist_mp.codec.rounding import rounding_seed, uniform
from dist_mp.codec.table import codec_by_name, codec_names
from dist_mp.errors import UserError

NAMES = [name for name in codec_names() if isinstance(codec_by_name(name), BlockCodec)]


def rounded(name: str, values: NDArray, seed: int, start: int = 0, block: int = 64) -> NDArray[np.uint8]:
    codec = codec_by_name(name, block, stochastic=True).seeded(seed, start)
    wire = np.empty(codec.wire_bytes(len(values)), np.uint8)
    codec.encode(values, wire)
    return wire


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("block", [5, 64, 0])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_match_the_reference(name: str, block: int, dtype: type) -> None:
    for n in (1, 63, 1100):
        rng = np.random.default_rng(n)
        values = (rng.standard_normal(n) * 10.0 ** rng.uniform(-7, 1, n)).astype(dtype)
        values[::9] = -0.0
        seed, start = rounding_seed(1, n), 7 * n
        reference = reference_codecs(block)[name].seeded(seed, start)
        expected = np.empty(reference.wire_bytes(n), np.uint8)
        reference.encode(values, expected)
        np.testing.assert_array_equal(rounded(name, values, seed, start, block), expected)
        codec, out, scratch = (
            codec_by_name(name, block, stochastic=True),
            np.empty_like(expected),
            np.empty(n, np.float32),
        )
        codec.seeded(seed, start).reduce([expected] * 3, [0.3, 0.1, 0.2], out, scratch)
        total = np.empty_like(expected)
        reference.reduce([expected] * 3, [0.3, 0.1, 0.2], total, scratch)
        np.testing.assert_array_equal(out, total)


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_over_many_seeds_is_the_number(name: str) -> None:
    values = np.concatenate([[1.0], np.random.default_rng(2).uniform(-0.99, 0.99, 63)]).astype(np.float32)
    codec = codec_by_name(name, 64)
    trials = 2000
    decoded = np.empty((trials, 64), np.float32)
    for trial in range(trials):
        codec.decode(rounded(name, values, rounding_seed(trial)), decoded[trial])
    error = decoded.mean(axis=0, dtype=np.float64) - values
    # Five standard deviations of the mean; what a code represents exactly has none.
    assert (np.abs(error) <= 5 * decoded.std(axis=0, dtype=np.float64) / np.sqrt(trials) + 1e-6).all()
    assert (decoded.std(axis=0) > 0).sum() > 50


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bytes_wherever_the_buffer_is_cut(name: str) -> None:
    values = np.random.default_rng(3).standard_normal(640).astype(np.float32)
    seed = rounding_seed(1, 2, 3)
    wire = rounded(name, values, seed)
    np.testing.assert_array_equal(wire, rounded(name, values, seed))
    parts = [rounded(name, values[:192], seed), rounded(name, values[192:], seed, 192)]
    np.testing.assert_array_equal(wire, np.concatenate(parts))
    assert (wire != rounded(name, values, rounding_seed(1, 2, 4))).any()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_code_represents_stays_as_it_is(name: str) -> None:
    values = np.random.default_rng(4).standard_normal(640).astype(np.float32)
    codec = codec_by_name(name, 64)
    once, again = np.empty((2, 640), np.float32)
    codec.decode(rounded(name, values, 5), once)
    codec.decode(rounded(name, once, 6), again)
    # Dividing a multiple of the scale by the scale may miss the code by one unit in the last place.
    np.testing.assert_allclose(again, once, rtol=0.35)
    assert (again != once).mean() < 0.01


def test_uniform_numbers_fill_the_unit_interval_and_do_not_depend_on_each_other() -> None:
    u = uniform(rounding_seed(9), np.arange(1 << 18, dtype=np.uint32)).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, 64, (0, 1))[0]
    expected = len(u) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * np.sqrt(126)
    for lag in (1, 2, 16, 64, 256):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / np.sqrt(len(u))
    other = uniform(rounding_seed(10), np.arange(1 << 18, dtype=np.uint32))
    assert abs(np.corrcoef(u, other)[0, 1]) < 5 / np.sqrt(len(u))


def test_seeds_differ_by_word_and_by_order() -> None:
    seeds = [rounding_seed(a, b, c) for a in range(8) for b in range(8) for c in range(8)]
    assert len(set(seeds)) == 512 and max(seeds) < 1 << 64


def test_a_float_codec_refuses_and_nearest_ignores_seeds() -> None:
    with pytest.raises(UserError, match="fp16"):
        codec_by_name("fp16", stochastic=True)
    codec = codec_by_name("linear")
    assert codec.seeded(3) is codec and codec_by_name("fp16").seeded(3).name == "fp16"
