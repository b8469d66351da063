"""Kernels of the 8-bit code books against the NumPy reference, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import njit
from numpy.typing import NDArray

from dist_mp.codec.base import Codec
from dist_mp.codec.block import BlockCodec
from dist_mp.codec.block_kernels import decode_block, encode_block
from dist_mp.codec.dettmers import dynamic_tree
from dist_mp.codec.reference import ReferenceBlock, reference_codecs
from dist_mp.codec.table import codec_by_name, codec_names

NAMES = [name for name in codec_names() if isinstance(codec_by_name(name), BlockCodec)]
FP8 = [name for name in NAMES if name.startswith("fp8")]
SOURCES = [np.float32, np.float16, ml_dtypes.bfloat16]
BLOCKS = [1, 5, 64, 96, 256, 0]
TINY = np.float32(2.0**-149)


def encoded(codec: Codec, values: NDArray) -> NDArray[np.uint8]:
    """The wire of `values`, at an odd address, with bytes around it that must stay as they are."""
    n = codec.wire_bytes(len(values))
    room = np.full(n + 129, 0xA5, np.uint8)
    codec.encode(values, room[65 : 65 + n])
    assert (room[:65] == 0xA5).all() and (room[65 + n :] == 0xA5).all()
    return room[65 : 65 + n].copy()


def decoded(codec: Codec, wire: NDArray[np.uint8], n: int, scale: float = 1.0) -> NDArray[np.float32]:
    """The numbers of a wire, with numbers around them that must stay as they are."""
    room = np.full(n + 32, 7.25, np.float32)
    codec.decode(wire, room[16 : 16 + n], scale)
    assert (room[:16] == 7.25).all() and (room[16 + n :] == 7.25).all()
    return room[16 : 16 + n].copy()


def assert_same(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(got, expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.signbit(got)[finite], np.signbit(expected)[finite])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", NAMES)
def test_encode_and_decode_match_the_reference(name: str, block: int, source: type) -> None:
    codec, reference = codec_by_name(name, block), reference_codecs(block)[name]
    for n in (0, 1, 2, 17, 63, 64, 65, 300, 1100):
        rng = np.random.default_rng(n)
        values = (rng.standard_normal(n) * 10.0 ** rng.uniform(-7, 3, n)).astype(source)
        values[::7] = 0
        wire = encoded(codec, values)
        assert codec.wire_bytes(n) == reference.wire_bytes(n)
        np.testing.assert_array_equal(wire, encoded(reference, values))
        for scale in (1.0, 0.25, 1 / 3):
            assert_same(decoded(codec, wire, n, scale), decoded(reference, wire, n, scale))


@pytest.mark.parametrize("block", [3, 64, 0])
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(bits=hnp.arrays(np.uint32, st.integers(0, 140)))
def test_any_bits_match_the_reference(name: str, block: int, bits: NDArray[np.uint32]) -> None:
    values = bits.view(np.float32)
    np.testing.assert_array_equal(
        encoded(codec_by_name(name, block), values), encoded(reference_codecs(block)[name], values)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_bound_and_its_neighbours_match_the_reference(name: str) -> None:
    codec, reference = codec_by_name(name, 0), reference_codecs(0)[name]
    assert isinstance(codec, BlockCodec)
    book = codec.book
    bounds = book.bounds
    top = np.float32(book.top or book.magnitudes[-1])
    near = [bounds, np.nextafter(bounds, np.float32(0)), np.nextafter(bounds, np.float32(np.inf)), book.magnitudes]
    for scale in (1.0, 2.0**-100, 2.0**100):
        values = np.concatenate([[top], *near, *(-x for x in near)]).astype(np.float32) * np.float32(scale)
        np.testing.assert_array_equal(encoded(codec, values), encoded(reference, values))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_beside_a_bound_match_the_reference_in_a_group_of_their_own(name: str) -> None:
    """Groups in which no other number is close to a bound, for those that are may take another way together."""
    codec, reference = codec_by_name(name, 64), reference_codecs(64)[name]
    assert isinstance(codec, BlockCodec)
    top = np.float32(codec.book.top or codec.book.magnitudes[-1])
    beside = [0, *(sign << shift for shift in range(1, 9) for sign in (1, -1)), 1, -1]
    numbers = (codec.book.bounds.view(np.int32)[:, None] + np.array(beside, np.int32)).view(np.float32).ravel()
    values = np.zeros((len(numbers), 64), np.float32)
    values[:, 0] = top
    values[:, 1] = numbers
    values[:, 2] = -numbers
    np.testing.assert_array_equal(encoded(codec, values.ravel()), encoded(reference, values.ravel()))


@pytest.mark.parametrize("name", NAMES)
def test_every_code_decodes_as_the_reference_and_encodes_to_itself(name: str) -> None:
    codec, reference = codec_by_name(name, 0), reference_codecs(0)[name]
    assert isinstance(codec, BlockCodec) and isinstance(reference, ReferenceBlock)
    used = len(codec.book.magnitudes)
    codes = np.concatenate([np.arange(used), 128 + np.arange(used)]).astype(np.uint8)
    wire = np.concatenate([np.array([1.0], np.float32).view(np.uint8), codes])
    got = decoded(codec, wire, len(codes))
    assert_same(got, decoded(reference, wire, len(codes)))
    np.testing.assert_array_equal(encoded(codec, got), wire)


@pytest.mark.parametrize("dtype", SOURCES)
@pytest.mark.parametrize("name", NAMES)
def test_ones_round_trip_from_every_type(name: str, dtype: type) -> None:  # bitsandbytes#1540
    codec = codec_by_name(name)
    for n in (1, 64, 300):
        np.testing.assert_array_equal(decoded(codec, encoded(codec, np.ones(n, dtype)), n), np.ones(n, np.float32))


@pytest.mark.parametrize("block", [16, 0])
@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros_and_zeroed_bytes_are_zeros(name: str, block: int) -> None:
    codec = codec_by_name(name, block)
    values = np.array([0.0, -0.0, 3.0, 0.0, -5.0] * 8, np.float32)
    assert (decoded(codec, encoded(codec, values), 40)[values == 0] == 0).all()
    assert (decoded(codec, encoded(codec, np.zeros(40, np.float32)), 40) == 0).all()
    assert (decoded(codec, np.zeros(codec.wire_bytes(40), np.uint8), 40) == 0).all()
    # The exchange zeroes the rest of a block behind the last number of a gradient.
    short = np.zeros(codec.wire_bytes(40), np.uint8)
    codec.encode(values[:5], short[: codec.wire_bytes(5)])
    assert (decoded(codec, short, 40)[5:] == 0).all()


@pytest.mark.parametrize("scale", [2.0**-149, 1e-42, 2.0**-127, 2.0**-126, 1e38, 3.4028235e38])
@pytest.mark.parametrize("name", NAMES)
def test_denormal_and_huge_numbers_stay_finite_and_near(name: str, scale: float) -> None:
    codec = codec_by_name(name, 64)
    # A power of two as scale: within 2**124 of float32's largest number fp8 rounds to 2**128, which is infinity.
    values = np.linspace(-1, 1, 64).astype(np.float32) * np.float32(min(scale, 3e38) if name in FP8 else scale)
    got = decoded(codec, encoded(codec, values), 64)
    assert np.isfinite(got).all()
    # The coarsest step is that of the mantissa type from 20 to 30.
    np.testing.assert_allclose(got.astype(np.float64), values, atol=2.0**-126 * 1.01, rtol=0.2001)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_not_finite_spoils_its_block_only(name: str, bad: float) -> None:
    codec = codec_by_name(name, 64)
    values = np.arange(200, dtype=np.float32)
    values[70] = bad
    wire = encoded(codec, values)
    got = decoded(codec, wire, 200)
    assert not np.isfinite(got[64:128]).any()
    assert np.isfinite(got[:64]).all() and np.isfinite(got[128:]).all()
    clean, out = encoded(codec, np.zeros(200, np.float32)), np.empty_like(wire)
    codec.reduce([clean, wire], [0.5, 0.5], out, np.empty(200, np.float32))
    assert not np.isfinite(decoded(codec, out, 200)[64:128]).any()
    whole = codec_by_name(name, 0)
    assert not np.isfinite(decoded(whole, encoded(whole, values), 200)).any()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", NAMES)
def test_reduce_matches_the_reference(name: str, block: int, ranks: int) -> None:
    codec, reference = codec_by_name(name, block), reference_codecs(block)[name]
    rng = np.random.default_rng([ranks, block])
    for n in (0, 1, 5, 64, 1100):
        values = (rng.standard_normal((ranks, n)) * 10.0 ** rng.integers(-4, 5, (ranks, n))).astype(np.float32)
        wires = [encoded(codec, v) for v in values]
        weights = list(rng.dirichlet(np.ones(ranks)))
        out, expected = np.empty((2, codec.wire_bytes(n)), np.uint8)
        scratch = np.empty(n, np.float32)
        codec.reduce(wires, weights, out, scratch)
        reference.reduce(wires, weights, expected, scratch)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", NAMES)
def test_largest_code_of_all_ranks_is_its_own_mean(name: str, ranks: int) -> None:  # horovod#3662
    codec = codec_by_name(name, 64)
    for largest in (np.float32(1.0), np.float32(1 / 3), np.float32(3e38), np.float32(1e-30)):
        value = decoded(codec, encoded(codec, np.full(100, largest, np.float32)), 100)
        if name not in FP8:
            np.testing.assert_array_equal(value, np.full(100, largest))
        value = -value if ranks == 2 else value
        wire = encoded(codec, value)
        out = np.empty_like(wire)
        codec.reduce([wire] * ranks, [1 / ranks] * ranks, out, np.empty(100, np.float32))
        if name not in FP8:
            np.testing.assert_array_equal(out[4:68], wire[4:68])
        # An FP32 sum of more than two equal terms may itself be rounded, in the last places.
        got = decoded(codec, out, 100)
        np.testing.assert_allclose(got, value, rtol=0 if ranks <= 2 else 2.0**-23 * ranks / 2)


@pytest.mark.parametrize("block", [64, 0])
@pytest.mark.parametrize("name", NAMES)
def test_decoded_numbers_are_encoded_without_a_further_error(name: str, block: int) -> None:
    codec = codec_by_name(name, block)
    values = np.random.default_rng(8).standard_normal(5000).astype(np.float32)
    once = decoded(codec, encoded(codec, values), 5000)
    np.testing.assert_array_equal(decoded(codec, encoded(codec, once), 5000), once)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_can_be_cut_anywhere_between_them(name: str) -> None:
    codec = codec_by_name(name, 64)
    values = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    wire = encoded(codec, values)
    for cut in (64, 448, 960):
        at = codec.wire_bytes(cut)
        np.testing.assert_array_equal(wire[:at], encoded(codec, values[:cut]))
        np.testing.assert_array_equal(wire[at:], encoded(codec, values[cut:]))


@pytest.mark.parametrize("name", NAMES)
def test_one_scale_for_all_is_the_largest_number_of_the_call(name: str) -> None:
    values = np.random.default_rng(4).standard_normal(3000).astype(np.float32)
    values[2900] = 50.0
    whole, single = codec_by_name(name, 0), codec_by_name(name, 3000)
    np.testing.assert_array_equal(
        decoded(whole, encoded(whole, values), 3000), decoded(single, encoded(single, values), 3000)
    )


@pytest.mark.parametrize(
    ("name", "absolute", "relative"),
    [
        ("dynamic_tree", 2.03e-3, 0.0157),
        ("dynamic_uniform", 2.45e-3, 0.0185),
        ("linear", 1.97e-3, 0.0451),
        ("static_tree", 7.93e-3, 0.0488),
        ("mantissa", 1.02e-2, 0.0607),
    ],
)
def test_errors_on_normal_numbers_are_those_of_the_type(name: str, absolute: float, relative: float) -> None:
    # Measured apart from this code on 200,000 numbers, as a share of the maximum; the maximum of a sample varies.
    values = np.random.default_rng(5).standard_normal(200_000).astype(np.float32)
    codec = codec_by_name(name, 0)
    error = np.abs(decoded(codec, encoded(codec, values), len(values)) - values).astype(np.float64)
    np.testing.assert_allclose(error.mean() / np.abs(values).max(), absolute, rtol=0.1)
    np.testing.assert_allclose((error / np.abs(values)).mean(), relative, rtol=0.15)


def test_other_processors_get_the_same_bytes(tmp_path: Path) -> None:
    """Kernels compiled for processors without the permutations of AVX-512, and without any."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import sys, numpy as np\n"
        "from dist_mp.codec.table import codec_by_name\n"
        "x = (np.random.default_rng(6).standard_normal(700) * np.logspace(-6, 2, 700)).astype(np.float32)\n"
        "codec = codec_by_name('dynamic_tree', 128)\n"
        "wire, mean = np.empty((2, codec.wire_bytes(700)), np.uint8)\n"
        "out = np.empty(700, np.float32)\n"
        "codec.encode(x, wire)\n"
        "codec.decode(wire, out)\n"
        "codec.reduce([wire, wire], [0.75, 0.5], mean, out.copy())\n"
        "sys.stdout.buffer.write(wire.tobytes() + out.tobytes() + mean.tobytes())\n"
    )

    def output(**extra: str) -> bytes:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | extra
        done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, timeout=200)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    plain = output(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=str(tmp_path))
    assert len(plain) > 700 * 6 and plain == output()
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx2") and features.get("f16c"):
        assert plain == output(
            NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+avx2,+f16c", NUMBA_CACHE_DIR=str(tmp_path)
        )
    if features.get("avx512vbmi"):
        assert plain == output(
            NUMBA_CPU_NAME="skylake-avx512",
            NUMBA_CPU_FEATURES="+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx2,+f16c",
            NUMBA_CACHE_DIR=str(tmp_path),
        )


@pytest.mark.skipif(not llvmlite.binding.get_host_cpu_features().get("avx512f"), reason="a processor without AVX-512")
def test_look_ups_are_permutations_of_registers() -> None:
    book = dynamic_tree()
    values, codes, numbers = np.ones(256, np.float32), np.empty(260, np.uint8), np.empty(256, np.float32)
    source, wire, out = (np.uint64(a.ctypes.data) for a in (values, codes, numbers))
    by_bytes = llvmlite.binding.get_host_cpu_features().get("avx512vbmi")
    for tables, instruction in ((book.tiled_bounds(), "vperm"), (book.encoding_tables(), "vpermt2b")):
        encode = njit(encode_block.py_func)
        encode(source, np.float32(0), 256, wire, np.float32(1), np.uint64(tables.ctypes.data), tables[0], None, None, 0)
        (machine_code,) = encode.inspect_asm().values()
        assert "zmm" in machine_code and "vgather" not in machine_code and machine_code.count("vperm") >= 4 * 8
        assert not by_bytes or instruction in machine_code
    decode, table = njit(decode_block.py_func), book.decoding_table()
    decode(wire, out, 256, np.float32(1), False, np.uint64(table.ctypes.data), None)
    (machine_code,) = decode.inspect_asm().values()
    assert "zmm" in machine_code and "vgather" not in machine_code
    assert not by_bytes or machine_code.count("vpermt2b") + machine_code.count("vpermi2b") >= 4
    np.testing.assert_array_equal(numbers, 1)
