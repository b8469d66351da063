"""The 1-bit codec: kernels against the reference, bit for bit, and what it promises."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from dist_mp.codec.base import Codec
from dist_mp.codec.reference import reference_codecs
from dist_mp.codec.table import codec_by_name
from dist_mp.errors import UserError


def encoded(codec: Codec, values: NDArray) -> NDArray[np.uint8]:
    wire = np.full(codec.wire_bytes(len(values)), 0xA5, np.uint8)
    codec.encode(values, wire)
    return wire


def decoded(codec: Codec, wire: NDArray[np.uint8], n: int, scale: float = 1.0) -> NDArray[np.float32]:
    out = np.full(n, 7.25, np.float32)
    codec.decode(wire, out, scale)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("block", [8, 40, 256])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_kernels_match_the_reference(ranks: int, block: int, dtype: type) -> None:
    codec, reference = codec_by_name("one_bit", block), reference_codecs(block)["one_bit"]
    for n in (0, 1, 7, 8, 9, 255, 600):
        rng = np.random.default_rng([ranks, n])
        values = (rng.standard_normal((ranks, n)) * 10.0 ** rng.integers(-3, 4, (ranks, n))).astype(dtype)
        values[:, ::5] = 0
        wires = [encoded(codec, v) for v in values]
        for wire, v in zip(wires, values, strict=True):
            np.testing.assert_array_equal(wire, encoded(reference, v))
            np.testing.assert_array_equal(decoded(codec, wire, n, 1 / 3), decoded(reference, wire, n, 1 / 3))
        weights = list(rng.dirichlet(np.ones(ranks)))
        out, expected = np.zeros((2, codec.wire_bytes(n)), np.uint8)
        codec.reduce(wires, weights, out, np.empty(n, np.float32))
        reference.reduce(wires, weights, expected, np.empty(n, np.float32))
        np.testing.assert_array_equal(out, expected)


def test_numbers_come_out_as_the_mean_of_their_sign() -> None:
    codec = codec_by_name("one_bit", 8)
    values = np.array([1, 2, -4, 3, -2, 0, -9, -1], np.float32)
    got = decoded(codec, encoded(codec, values), 8)
    np.testing.assert_array_equal(got, np.where(values < 0, np.float32(-4), np.float32(1.5)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_equal_numbers_of_all_ranks_are_their_own_mean(ranks: int) -> None:  # horovod#3662
    codec = codec_by_name("one_bit")
    values = np.full(300, np.float32(-1 / 3))
    wire = encoded(codec, values)
    np.testing.assert_array_equal(decoded(codec, wire, 300), values)
    out = np.empty_like(wire)
    codec.reduce([wire] * ranks, [1 / ranks] * ranks, out, np.empty(300, np.float32))
    np.testing.assert_array_equal(decoded(codec, out, 300), values)


def test_what_lies_behind_the_last_number_of_a_gradient_stays_zero() -> None:
    codec = codec_by_name("one_bit", 64)
    wires = np.zeros((2, codec.wire_bytes(192)), np.uint8)
    for wire, sign in zip(wires, (1, -1), strict=True):
        codec.encode(sign * np.arange(1, 71, dtype=np.float32), wire[: codec.wire_bytes(70)])
        got = decoded(codec, wire, 192)
        assert (got[:70] * sign > 0).all() and (got[70:] == 0).all()
    out = np.empty_like(wires[0])
    codec.reduce(list(wires), [0.75, 0.25], out, np.empty(192, np.float32))
    got = decoded(codec, out, 192)
    assert (got[:70] > 0).all() and (got[70:] == 0).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_comes_out_as_such(bad: float) -> None:
    codec = codec_by_name("one_bit", 64)
    values = np.linspace(-1, 1, 128).astype(np.float32)
    values[70] = bad
    wire = encoded(codec, values)
    got = decoded(codec, wire, 128)
    assert not np.isfinite(got[70]) and np.isfinite(got[:64]).all()
    out = np.empty_like(wire)
    codec.reduce([encoded(codec, np.ones(128, np.float32)), wire], [0.5, 0.5], out, np.empty(128, np.float32))
    assert not np.isfinite(decoded(codec, out, 128)[70])


@pytest.mark.parametrize("block", [0, 12])
def test_a_block_that_is_not_whole_bytes_is_refused(block: int) -> None:
    with pytest.raises(UserError, match="multiple of 8"):
        codec_by_name("one_bit", block)
