"""The codec benchmark: every codec has its rows, the error table is that of the types, peers are asked in turn."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dist_mp.codec.table import codec_names
from dist_mp.errors import UserError
from dist_mp.experiments.bench_codec import PEER, CodecBench, measure_codecs, print_report


def small(**fields: object) -> CodecBench:
    return CodecBench(numbers=5000, samples=20_000, rounds=2, **fields)  # type: ignore[arg-type]


def test_all_codecs_with_gradients() -> None:
    gradients = {"layer 1": np.random.default_rng(1).standard_normal((30, 20)).astype(np.float16)}
    report = measure_codecs(small(gradients=gradients))
    names = {*codec_names(), "dynamic_tree stochastic"}
    assert {row.codec for row in report.speeds} == names
    assert {(row.codec, row.data) for row in report.errors} == {
        (name, data) for name in names for data in ("N(0,1)", "U(0,1)", "lognormal 3", "layer 1")
    }
    assert all(min(row.encode, row.decode, row.encode_of_copy, row.decode_of_copy) > 0 for row in report.speeds)
    by_key = {(row.codec, row.data): row for row in report.errors}
    assert by_key["fp32", "N(0,1)"].absolute == by_key["fp16", "layer 1"].relative == 0
    assert by_key["fp32", "N(0,1)"].bits == 32 and by_key["one_bit", "N(0,1)"].bits < 1.5
    # Measured apart from this code in blocks of 256, as shares of each block's maximum there; relative alike.
    assert by_key["dynamic_tree", "N(0,1)"].relative == pytest.approx(0.0132, rel=0.05)
    assert by_key["dynamic_uniform", "N(0,1)"].relative == pytest.approx(0.0153, rel=0.05)
    assert by_key["linear", "lognormal 3"].relative == pytest.approx(0.857, rel=0.05)
    assert by_key["dynamic_tree stochastic", "N(0,1)"].relative > by_key["dynamic_tree", "N(0,1)"].relative
    text = io.StringIO()
    print_report(Console(file=text, width=200), report)
    assert all(name in text.getvalue() for name in (*names, "layer 1"))
    assert json.loads(report.to_json())["speeds"][0]["codec"] == "fp32"


def test_one_scale_for_all() -> None:
    report = measure_codecs(small(codecs=("linear", "one_bit"), block=0))
    assert {row.codec for row in report.speeds} == {"linear", "one_bit"}
    relative = {(row.codec, row.data): row.relative for row in report.errors}
    assert relative["linear", "lognormal 3"] == pytest.approx(0.996, rel=0.01)


def test_the_peer_answers_from_its_own_interpreter(tmp_path: Path) -> None:
    """A stand-in with bitsandbytes' interface that stores bytes linearly; the protocol is the real one."""
    package = tmp_path / "lib"
    (package / "bitsandbytes").mkdir(parents=True)
    (package / "bitsandbytes" / "__init__.py").write_text("")
    (package / "bitsandbytes" / "functional.py").write_text(
        "import numpy as np\n"
        "def quantize_blockwise(x, blocksize):\n"
        "    return np.round(x.array * 10), None\n"
        "class Tensor:\n"
        "    def __init__(self, array): self.array = array\n"
        "    def numpy(self): return self.array\n"
        "def dequantize_blockwise(codes, state): return Tensor((codes / 10).astype(np.float32))\n"
    )
    (package / "torch.py").write_text(
        "from bitsandbytes.functional import Tensor as from_numpy\ndef set_num_threads(n): pass\n"
    )
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{package}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    report = measure_codecs(small(codecs=("fp16",), peers=tmp_path))
    peer = [row for row in report.errors if row.codec == PEER]
    assert [row.data for row in peer] == ["N(0,1)", "U(0,1)", "lognormal 3"]
    assert peer[1].absolute == pytest.approx(0.025, rel=0.05)
    assert [row.codec for row in report.speeds] == ["fp16", PEER] and report.speeds[1].reduce is None


def test_mistakes_are_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown codec 'fp9'"):
        measure_codecs(small(codecs=("fp9",)))
    with pytest.raises(UserError, match="rounds"):
        measure_codecs(CodecBench(rounds=0))
    with pytest.raises(UserError, match="layer 2"):
        measure_codecs(small(gradients={"layer 2": np.array([1, np.nan])}))
    with pytest.raises(UserError, match="torch/bin/python"):
        measure_codecs(small(codecs=("fp16",), peers=tmp_path))
    broken = tmp_path / "torch" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho no module named torch >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(UserError, match="no module named torch"):
        measure_codecs(small(codecs=("fp16",), peers=tmp_path))
