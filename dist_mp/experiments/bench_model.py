"""``dist-mp bench model``: the training step of the language model over a grid of sizes, with Keras and PyTorch beside.

The benchmark is that of the mixed-precision evaluation on etftrends.com: layers L, rows B, cells N, end-to-end rate
beside the rate of the matrix products alone. Every measurement is a process of its own; in each round all systems of a
size take their turn. Out of memory is a result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console

from dist_mp.errors import UserError
from dist_mp.experiments.model_report import Row, print_tables, write_plots
from dist_mp.experiments.model_step import Request, step_operations
from dist_mp.launch.mpirun import rank_environment

PRECISIONS = ("fp32", "bf16", "fp16")
OUT_OF_MEMORY = "out of memory"
OOM_STATUSES = (-9, 137)
"""A process that the system's own limit on memory has killed."""
OOM_WORDS = ("bad_alloc", "MemoryError", "ResourceExhausted", "not enough memory", "can't allocate memory", "OOM when")


@dataclass(frozen=True)
class Bench:
    """What to measure; every field has the command line's default."""

    layers: tuple[int, ...] = (2,)
    rows: tuple[int, ...] = (64,)
    units: tuple[int, ...] = (512,)
    precisions: tuple[str, ...] = ("fp32", "bf16")
    length: int = 35
    vocabulary: int = 10_000
    threads: int = 1
    steps: int = 5
    """Steps in a round, after the warm-up."""
    rounds: int = 3
    recompute: bool = False
    softmax_block: int | None = None
    keras: bool = False
    """Measure Keras's LSTM in FP32 beside."""
    peers: Path | None = None
    """A folder with PyTorch in a virtual environment `torch` of it."""
    memory_gib: float | None = None
    """Memory that a process may use (GiB); None: nine tenths of what is free at the start."""
    timeout: float = 1800.0
    """Longest time of a process (s)."""
    out: Path | None = None
    """A folder for result.json and the plots."""


@dataclass(frozen=True)
class System:
    """One of those that take turns."""

    name: str
    precision: str
    program: tuple[str, ...]


def run_bench(bench: Bench) -> list[Row]:
    """Measure size by size and round by round, print the tables, write JSON and plots.

    Raises:
        UserError: settings that cannot be measured, a peer that is not there, or a process that failed.
    """
    _check(bench)
    if bench.out is not None:
        _make_folder(bench.out)
    systems = list(_systems(bench))
    limit = bench.memory_gib or 0.9 * psutil.virtual_memory().available / 2**30
    console, rows = Console(), []
    for layers, batch, units in product(bench.layers, bench.rows, bench.units):
        taken: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}
        for number in range(bench.rounds):
            for system in systems:
                past = taken[system.name]
                if any(result["outcome"] == OUT_OF_MEMORY for result in past):
                    continue
                console.print(
                    f"L={layers} B={batch} N={units}, round {number + 1} of {bench.rounds}: {system.name}",
                    highlight=False,
                )
                request = _request(bench, system.precision, layers, batch, units, limit, details=number == 0)
                past.append(run_one(system, request, bench.timeout))
        operations = step_operations(layers, batch, units, bench.length, bench.vocabulary)
        rows += [make_row(s, layers, batch, units, operations, taken[s.name]) for s in systems]
    print_tables(console, rows, bench.length, bench.vocabulary, bench.threads)
    if bench.out is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(bench).items()}
        content = {"settings": settings | {"memory_gib": limit}, "rows": [asdict(row) for row in rows]}
        (bench.out / "result.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        write_plots(bench.out, rows)
    return rows


def run_one(system: System, request: Request, timeout: float) -> dict[str, Any]:
    """Run one process to its end and read its result; what died for want of memory is a result too."""
    with tempfile.TemporaryDirectory(prefix="dist-mp-bench-") as folder:
        result = Path(folder) / "result.json"
        command = [*system.program, json.dumps(asdict(request)), str(result)]
        environment = dict(os.environ) | rank_environment(request.threads, os.environ)
        try:
            done = subprocess.run(
                command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"bench model: {system.name} took longer than {timeout:g} s; use smaller sizes") from error
        if done.returncode == 0:
            content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return content
        if done.returncode in OOM_STATUSES or any(word in done.stderr for word in OOM_WORDS):
            return {"outcome": OUT_OF_MEMORY}
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"bench model: {system.name} failed: {last}")


def make_row(
    system: System, layers: int, batch: int, units: int, operations: int, results: Sequence[dict[str, Any]]
) -> Row:
    """Pool the rounds of a system at a size."""
    measured = [result for result in results if result["outcome"] != OUT_OF_MEMORY]
    if len(measured) < len(results):
        return Row(system.name, system.precision, layers, batch, units, None)
    seconds = [median(result["seconds"]) for result in measured]
    first = measured[0]
    shares: dict[str, float] | None = None
    if "shares" in first:
        profiled = dict(first["shares"])
        step, fused = profiled.pop("step"), profiled.pop("fused loops")
        softmax = min(first["softmax_seconds"], fused)
        shares = {kind: value / step for kind, value in profiled.items()}
        shares |= {"softmax": softmax / step, "gates": (fused - softmax) / step}
    return Row(
        system.name,
        system.precision,
        layers,
        batch,
        units,
        seconds=median(seconds),
        round_seconds=seconds,
        flops=operations / median(seconds),
        products_flops=operations / first["products_seconds"] if "products_seconds" in first else None,
        peak_flops=first.get("peak_flops"),
        peak_bytes=max(result["peak_bytes"] for result in measured) if "peak_bytes" in first else None,
        tensor_bytes=first.get("tensor_bytes"),
        shares=shares,
    )


def _request(
    bench: Bench, precision: str, layers: int, batch: int, units: int, limit: float, *, details: bool
) -> Request:
    return Request(
        precision=precision,
        layers=layers,
        rows=batch,
        units=units,
        length=bench.length,
        vocabulary=bench.vocabulary,
        threads=bench.threads,
        steps=bench.steps,
        recompute=bench.recompute,
        softmax_block=bench.softmax_block,
        details=details,
        memory_gib=limit,
    )


def _systems(bench: Bench) -> Iterator[System]:
    peer = str(Path(__file__).with_name("peer_step.py"))
    for precision in bench.precisions:
        yield System(f"dist_mp {precision}", precision, (sys.executable, "-m", "dist_mp.experiments.model_step"))
    if bench.keras:
        yield System("Keras fp32", "fp32", (sys.executable, peer, "keras"))
    if bench.peers is not None:
        python = bench.peers / "torch" / "bin" / "python"
        if not os.access(python, os.X_OK):
            raise UserError(f"--peers {bench.peers}: no {python}; install torch into a virtual environment there")
        for precision in ("fp32", "bf16"):
            if precision in bench.precisions:
                yield System(f"PyTorch {precision}", precision, (str(python), peer, "torch"))


def _check(bench: Bench) -> None:
    for precision in bench.precisions:
        if precision not in PRECISIONS:
            raise UserError(f"bench model: unknown precision {precision!r}: valid are {', '.join(PRECISIONS)}")
    for name in ("layers", "rows", "units", "precisions"):
        if not getattr(bench, name):
            raise UserError(f"bench model: --{name} is empty; give at least one")
    numbers = (*bench.layers, *bench.rows, *bench.units, bench.length, bench.vocabulary, bench.threads, bench.steps)
    if min(*numbers, bench.rounds) < 1:
        raise UserError("bench model: sizes, threads, steps and rounds must be at least 1")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"bench model: cannot make the folder {folder} ({error.strerror}); name another") from error
