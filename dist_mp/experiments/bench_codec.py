"""``dist-mp bench codec``: what each codec loses, and how many numbers a second one core encodes and decodes.

Speeds are medians over rounds. Each round measures copying and every codec, and the peer where there is one, one
after the other, so that a slow minute of the machine meets all; what is compared with copying is compared within the
round.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dist_mp.codec.base import Codec
from dist_mp.codec.block import DEFAULT_BLOCK
from dist_mp.codec.table import codec_by_name, codec_names
from dist_mp.errors import UserError
from dist_mp.experiments import bitsandbytes_codec

PEER = "bitsandbytes"
STOCHASTIC = " stochastic"
"""Behind a codec's name: with stochastic rounding."""
CALL_SECONDS = 0.02
"""A measurement repeats a call for about this long."""


@dataclass(frozen=True)
class CodecBench:
    """What to measure; every field has the command line's default."""

    codecs: tuple[str, ...] = ()
    """Names of codecs; none means all."""
    block: int = DEFAULT_BLOCK
    numbers: int = 1 << 22
    """Numbers of the speed measurement."""
    samples: int = 200_000
    """Numbers of each distribution in the error table."""
    rounds: int = 9
    seed: int = 1
    gradients: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further arrays for the error table, by name."""
    peers: Path | None = None
    """Folder with ``torch/bin/python``, in which bitsandbytes is installed."""


@dataclass(frozen=True)
class ErrorRow:
    """What one codec loses of one set of numbers."""

    codec: str
    data: str
    absolute: float
    """Mean of the absolute error, as a share of the largest number."""
    relative: float
    """Mean of the absolute error over the number, zeros left out."""
    bits: float
    """On the wire for each number, scales included."""


@dataclass(frozen=True)
class SpeedRow:
    """How fast one core is."""

    codec: str
    encode: float
    """1e9 numbers a second, float32 to the wire."""
    decode: float
    """1e9 numbers a second, the wire to float32."""
    reduce: float | None
    """1e9 numbers a second of the mean of two wires."""
    encode_of_copy: float
    """Bytes read and written a second, over those of copying."""
    decode_of_copy: float


@dataclass(frozen=True)
class CodecReport:
    """Both tables."""

    block: int
    numbers: int
    copy_gigabytes: float
    """Bytes read and written a second by a copy of float32 numbers (1e9)."""
    errors: tuple[ErrorRow, ...]
    speeds: tuple[SpeedRow, ...]

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self), indent=1)


def measure_codecs(bench: CodecBench) -> CodecReport:
    """Measure the errors and speeds of all codecs on one core.

    Raises:
        UserError: an unknown codec, arrays that hold no numbers, or peers that are not there.
    """
    codecs = _codecs(bench)
    data = {**_distributions(bench), **{name: _gradient(name, array) for name, array in bench.gradients.items()}}
    values = np.random.default_rng(bench.seed).standard_normal(bench.numbers).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        errors = [_error(name, codec, key, array) for key, array in data.items() for name, codec in codecs.items()]
        timed: dict[str, Callable[[], float]] = {}
        if bench.peers is not None:
            block = bench.block or 4096
            for key, array in data.items():
                with _peer(bench.peers, array, block, Path(folder)) as ask:
                    errors.append(_error_row(PEER, key, array, np.load(ask("error")), 8 + 32 / block))
            ask = stack.enter_context(_peer(bench.peers, values, block, Path(folder)))
            timed[f"{PEER}/encode"] = lambda: median(ask("encode 3"))
            timed[f"{PEER}/decode"] = lambda: median(ask("decode 3"))
        for name, codec in codecs.items():
            timed |= {f"{name}/{what}": _timer(call) for what, call in _calls(codec, values).items()}
        target = np.empty_like(values)
        timed["copy"] = _timer(lambda: np.copyto(target, values))
        rounds = [{what: measure() for what, measure in timed.items()} for _ in range(bench.rounds)]
    names = [*codecs, *([PEER] if bench.peers is not None else [])]
    wire = {name: codec.wire_bytes(bench.numbers) / bench.numbers for name, codec in codecs.items()}
    speeds = [_speed(name, rounds, bench.numbers, wire.get(name, 1 + 4 / (bench.block or 4096))) for name in names]
    copy = 8e-9 * bench.numbers / median(r["copy"] for r in rounds)
    return CodecReport(bench.block, bench.numbers, copy, tuple(errors), tuple(speeds))


def print_report(console: Console, report: CodecReport) -> None:
    """Show both tables."""
    block = f"blocks of {report.block}" if report.block else "one scale for all"
    table = Table(title=f"Error, {block}: mean as a share of the maximum / mean relative")
    datasets = list(dict.fromkeys(row.data for row in report.errors))
    table.add_column("codec")
    table.add_column("bits", justify="right")
    for data in datasets:
        table.add_column(data, justify="right")
    for codec in dict.fromkeys(row.codec for row in report.errors):
        rows = {row.data: row for row in report.errors if row.codec == codec}
        cells = [f"{rows[d].absolute:.2e} / {rows[d].relative:.2%}" for d in datasets]
        table.add_row(codec, f"{rows[datasets[0]].bits:.2f}", *cells)
    console.print(table)
    table = Table(
        title=f"One core, {report.numbers:,} numbers, 1e9 numbers/s; copying moves {report.copy_gigabytes:.1f} GB/s"
    )
    for heading in ("codec", "encode", "decode", "mean of two", "encode, of copy", "decode, of copy"):
        table.add_column(heading, justify="left" if heading == "codec" else "right")
    for row in report.speeds:
        reduce = "" if row.reduce is None else f"{row.reduce:.2f}"
        of_copy = f"{row.encode_of_copy:.0%}", f"{row.decode_of_copy:.0%}"
        table.add_row(row.codec, f"{row.encode:.2f}", f"{row.decode:.2f}", reduce, *of_copy)
    console.print(table)


def _codecs(bench: CodecBench) -> dict[str, Codec]:
    codecs: dict[str, Codec] = {}
    for name in bench.codecs or codec_names():
        codecs[name] = codec_by_name(name, bench.block or (DEFAULT_BLOCK if name == "one_bit" else 0))
    if "dynamic_tree" in codecs:
        codecs["dynamic_tree" + STOCHASTIC] = codec_by_name("dynamic_tree", bench.block, stochastic=True)
    for what, value in (("numbers", bench.numbers), ("samples", bench.samples), ("rounds", bench.rounds)):
        if value < 1:
            raise UserError(f"bench codec: {what} must be positive, got {value}")
    return codecs


def _distributions(bench: CodecBench) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(bench.seed)
    return {
        "N(0,1)": rng.standard_normal(bench.samples).astype(np.float32),
        "U(0,1)": rng.uniform(0, 1, bench.samples).astype(np.float32),
        "lognormal 3": rng.lognormal(0, 3, bench.samples).astype(np.float32),
    }


def _gradient(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    values = np.ascontiguousarray(array).reshape(-1).astype(np.float32)
    if not values.size or not np.isfinite(values).all() or not values.any():
        raise UserError(f"bench codec: {name} must hold finite numbers that are not all 0")
    return values


def _error(name: str, codec: Codec, data: str, values: NDArray[np.float32]) -> ErrorRow:
    wire, out = np.empty(codec.wire_bytes(len(values)), np.uint8), np.empty_like(values)
    codec.encode(values, wire)
    codec.decode(wire, out)
    return _error_row(name, data, values, out, 8 * len(wire) / len(values))


def _error_row(
    name: str, data: str, values: NDArray[np.float32], decoded: NDArray[np.float32], bits: float
) -> ErrorRow:
    magnitude = np.abs(values.astype(np.float64))
    error = np.abs(decoded.astype(np.float64) - values)
    there = magnitude > 0
    return ErrorRow(name, data, error.mean() / magnitude.max(), (error[there] / magnitude[there]).mean(), bits)


def _calls(codec: Codec, values: NDArray[np.float32]) -> dict[str, Callable[[], None]]:
    wires = np.empty((3, codec.wire_bytes(len(values))), np.uint8)
    out = np.empty_like(values)
    codec.encode(values, wires[0])
    codec.encode(values[::-1].copy(), wires[1])
    return {
        "encode": lambda: codec.encode(values, wires[0]),
        "decode": lambda: codec.decode(wires[0], out),
        "reduce": lambda: codec.reduce([wires[0], wires[1]], [0.5, 0.5], wires[2], out),
    }


def _timer(call: Callable[[], None]) -> Callable[[], float]:
    """Measures seconds a call, the median of as many as fit into CALL_SECONDS; compiles and warms up first."""
    call()
    start = time.perf_counter()
    call()
    repeats = max(3, int(CALL_SECONDS / (time.perf_counter() - start + 1e-9)))

    def measure() -> float:
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return median(times)

    return measure


def _speed(name: str, rounds: list[dict[str, float]], numbers: int, wire: float) -> SpeedRow:
    def rate(what: str) -> float:
        return 1e-9 * numbers / median(r[f"{name}/{what}"] for r in rounds)

    def of_copy(what: str) -> float:
        # A number is 4 bytes on one side and `wire` on the other; copying moves 8.
        return median(r["copy"] / r[f"{name}/{what}"] for r in rounds) * (4 + wire) / 8

    reduce = rate("reduce") if f"{name}/reduce" in rounds[0] else None
    return SpeedRow(name, rate("encode"), rate("decode"), reduce, of_copy("encode"), of_copy("decode"))


@contextlib.contextmanager
def _peer(peers: Path, values: NDArray[np.float32], block: int, folder: Path) -> Iterator[Callable[[str], Any]]:
    """Start bitsandbytes in its own environment and give a function that asks it."""
    python = peers / "torch" / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise UserError(
            f"--peers {peers}: no {python}; install torch and bitsandbytes into a virtual environment {peers}/torch"
        )
    file = folder / "values.npy"
    np.save(file, values)
    # Without site packages of ours; its own messages on standard error are of no use here.
    command = [str(python), str(Path(bitsandbytes_codec.__file__)), str(file), str(block)]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    with tempfile.TemporaryFile("w+") as complaints:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env=environment | {"OMP_NUM_THREADS": "1"},
        ) as child:

            def ask(question: str) -> Any:
                assert child.stdin is not None and child.stdout is not None
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(question + "\n")
                    child.stdin.flush()
                answer = child.stdout.readline()
                if not answer:
                    complaints.seek(0)
                    last = (complaints.read().strip().splitlines() or ["no answer"])[-1]
                    raise UserError(f"--peers {peers}: bitsandbytes failed: {last}")
                return json.loads(answer)

            try:
                yield ask
            finally:
                child.kill()
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # it holds what a child that has died did not read
                    child.stdin.close()
