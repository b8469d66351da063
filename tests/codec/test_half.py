"""Kernels of fp32, fp16 and bf16 against the NumPy reference, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dist_mp.codec.base import Codec
from dist_mp.codec.half import CHUNK
from dist_mp.codec.reference import reference_codecs
from dist_mp.codec.table import codec_by_name

NAMES = ["fp32", "fp16", "bf16"]
DTYPES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
TINY = np.float32(2.0**-149)

EDGES = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        TINY,
        -TINY,
        1e-40,
        2.0**-126,
        2.0**-24,
        2.0**-25,
        2.0**-26 * 3,
        6e-8,
        5.96e-8,
        65504.0,
        65519.996,
        65520.0,
        -65520.0,
        1e30,
        3.4028235e38,
        3.3895314e38,
        3.3961776e38,
        20000.0,
        # Halfway between neighbours, with the lower one even and odd; just above and below.
        1.0 + 2.0**-11,
        1.0 + 3 * 2.0**-11,
        1.0 + 2.0**-11 + 2.0**-23,
        1.0 + 2.0**-11 - 2.0**-23,
        1.0 + 2.0**-8,
        1.0 + 3 * 2.0**-8,
        1.0 + 2.0**-8 + 2.0**-23,
        1.0 + 2.0**-8 - 2.0**-23,
    ],
    np.float32,
)


def encoded(codec: Codec, values: NDArray) -> NDArray[np.uint8]:
    """The wire of `values`, with bytes around it that must stay as they are."""
    n = codec.wire_bytes(len(values))
    room = np.full(n + 128, 0xA5, np.uint8)
    codec.encode(values, room[64 : 64 + n])
    assert (room[:64] == 0xA5).all() and (room[64 + n :] == 0xA5).all()
    return room[64 : 64 + n].copy()


def decoded(codec: Codec, wire: NDArray[np.uint8], n: int, scale: float = 1.0) -> NDArray[np.float32]:
    """The numbers of a wire, with numbers around them that must stay as they are."""
    room = np.full(n + 32, 7.25, np.float32)
    codec.decode(wire, room[16 : 16 + n], scale)
    assert (room[:16] == 7.25).all() and (room[16 + n :] == 7.25).all()
    return room[16 : 16 + n].copy()


def assert_same_numbers(wire: NDArray[np.uint8], expected: NDArray[np.uint8], name: str) -> None:
    """Equal bits; where the reference has a NaN, any NaN will do."""
    got, want = wire.view(DTYPES[name]), expected.view(DTYPES[name])
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    bits = np.uint32 if name == "fp32" else np.uint16
    np.testing.assert_array_equal(got.view(bits)[~nan], want.view(bits)[~nan])


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 1001])
def test_encode_and_decode_match_the_reference(name: str, source: str, n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32) * np.float32(3e4)
    values[: len(EDGES)] = EDGES[:n]
    with np.errstate(over="ignore", invalid="ignore"):
        values = values.astype(DTYPES[source])
    codec, reference = codec_by_name(name), reference_codecs()[name]
    wire = encoded(codec, values)
    assert_same_numbers(wire, encoded(reference, values), name)
    for scale in (1.0, 0.25, 1 / 3):
        got, want = decoded(codec, wire, n, scale), decoded(reference, wire, n, scale)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(bits=hnp.arrays(np.uint32, st.integers(0, 70)))
def test_encode_matches_the_reference_on_any_bits(name: str, bits: NDArray[np.uint32]) -> None:
    values = bits.view(np.float32)
    wire = encoded(codec_by_name(name), values)
    assert_same_numbers(wire, encoded(reference_codecs()[name], values), name)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_every_code_decodes_as_the_reference_and_encodes_to_itself(name: str) -> None:
    wire = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    codec, reference = codec_by_name(name), reference_codecs()[name]
    got = decoded(codec, wire, 1 << 16)
    np.testing.assert_array_equal(got, decoded(reference, wire, 1 << 16))
    assert_same_numbers(encoded(codec, got), wire, name)
    assert_same_numbers(encoded(codec, wire.view(DTYPES[name])), wire, name)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_every_midpoint_and_its_neighbours_round_as_the_reference(name: str) -> None:
    codes = np.arange(0, 0x7C00 if name == "fp16" else 0x7F80, dtype=np.uint16)
    low = codes.view(DTYPES[name]).astype(np.float64)
    high = (codes + 1).view(DTYPES[name]).astype(np.float64)
    high[~np.isfinite(high)] = 65536.0 if name == "fp16" else 2.0**128
    middle = ((low + high) / 2).astype(np.float32)
    for values in (middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf)), -middle):
        assert_same_numbers(encoded(codec_by_name(name), values), encoded(reference_codecs()[name], values), name)


def test_no_nan_becomes_a_number_or_infinity_in_bf16() -> None:
    low = np.concatenate([np.arange(1, 300), np.arange(0x7FFF00, 0x800000), 1 << np.arange(23)]).astype(np.uint32)
    for sign in (0, 1 << 31):
        nans = (low | np.uint32(0x7F800000 | sign)).view(np.float32)
        codec = codec_by_name("bf16")
        assert np.isnan(decoded(codec, encoded(codec, nans), len(nans))).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n", [0, 1, 5, CHUNK - 1, CHUNK, 2 * CHUNK + 3])
def test_reduce_matches_the_reference(name: str, ranks: int, n: int) -> None:
    rng = np.random.default_rng([ranks, n])
    codec, reference = codec_by_name(name), reference_codecs()[name]
    wires = []
    for rank in range(ranks):
        values = (rng.standard_normal(n) * 10.0 ** rng.integers(-8, 5, n)).astype(np.float32)
        values[: len(EDGES)] = np.roll(EDGES, rank)[:n]
        wires.append(encoded(codec, values))
    weights = list(rng.dirichlet(np.ones(ranks)))
    out, expected = np.empty((2, codec.wire_bytes(n)), np.uint8)
    scratch = np.empty(n, np.float32)
    codec.reduce(wires, weights, out, scratch)
    reference.reduce(wires, weights, expected, scratch)
    assert_same_numbers(out, expected, name)


@pytest.mark.parametrize("value", [20000.0, 6e-8, 65504.0])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_mean_of_equal_halves_neither_overflows_nor_vanishes(ranks: int, value: float) -> None:
    codec = codec_by_name("fp16")
    wire = encoded(codec, np.full(9, value, np.float32))
    out = np.empty_like(wire)
    codec.reduce([wire] * ranks, [1 / ranks] * ranks, out, np.empty(9, np.float32))
    np.testing.assert_array_equal(out, wire)


@pytest.mark.parametrize("name", NAMES)
def test_non_finite_numbers_of_one_rank_reach_the_sum(name: str) -> None:
    codec = codec_by_name(name)
    clean = encoded(codec, np.ones(4, np.float32))
    dirty = encoded(codec, np.array([1, np.nan, np.inf, -np.inf], np.float32))
    out = np.empty_like(clean)
    codec.reduce([clean, clean, dirty], [1 / 3] * 3, out, np.empty(4, np.float32))
    np.testing.assert_array_equal(decoded(codec, out, 4), np.array([1, np.nan, np.inf, -np.inf], np.float32))


def test_a_type_without_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        codec_by_name("fp16").encode(np.ones(2), np.empty(4, np.uint8))
