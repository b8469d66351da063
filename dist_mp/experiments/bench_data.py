"""``dist-mp bench data``: does the input keep up? Batches alone, the memory they need, and the wait for them in a run.

The run is a real one of a few steps on the ranks asked for: its records say how long each step waited for its batch,
which the prefetch thread prepares on the same core. Steps that compile a graph are left out of the shares.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table

from dist_mp import settings
from dist_mp.config import Config
from dist_mp.data.open import open_dataset
from dist_mp.errors import UserError

COMPILING = 5.0
"""A step that takes so many times the median one has compiled something."""
LIMIT = 0.02
"""Share of a step that may go into waiting for its batch."""


@dataclass(frozen=True)
class Bench:
    """What to measure; every field has the command line's default."""

    configurations: tuple[str, ...] = ()
    """Files or names of bundled ones (empty: all bundled ones)."""
    overrides: tuple[str, ...] = ()
    ranks: int = 2
    steps: int = 60
    """Steps of the run."""
    batches: int = 200
    """Batches of one rank that are prepared alone."""
    out: Path | None = None
    """A file for the result as JSON."""


@dataclass(frozen=True)
class Alone:
    """Batches of one rank, prepared without a model beside."""

    open_seconds: float
    """Opening the data set: reading or mapping it, vocabulary, normaliser (s)."""
    batch_seconds: float
    """Median time of a batch (s)."""
    slowest_seconds: float
    batch_bytes: int
    """Inputs, targets and weights of the largest batch (B)."""
    memory_bytes: int
    """Growth of the process's resident memory, at its highest (B); memory-mapped pages are in it."""


@dataclass(frozen=True)
class Row:
    """One configuration."""

    configuration: str
    data: str
    alone: Alone
    step_seconds: float
    """Median step of the run (s)."""
    share_input: float
    """Share of all steps' time that went into waiting for a batch."""
    steps: int

    @property
    def keeps_up(self) -> bool:
        """Whether the wait stays below the limit."""
        return self.share_input < LIMIT


class _Memory:
    """Watches the resident memory of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._begin = self.highest = self._process.memory_info().rss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dist-mp-memory", daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.highest = max(self.highest, self._process.memory_info().rss)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return max(self.highest, self._process.memory_info().rss) - self._begin


def measure_alone(config: Config, ranks: int, batches: int) -> tuple[str, Alone]:
    """Open the data set and prepare batches of rank 0, over as many epochs as that takes; its one line besides."""
    rows = config.train.batch_size
    times: list[float] = []
    largest, epoch = 0, 0
    with _Memory() as memory:
        started = time.perf_counter()
        dataset = open_dataset(config)
        opened = time.perf_counter() - started
        while len(times) < batches:
            source = dataset.train.batches(epoch, ranks * rows, 0, rows)
            began, before = time.perf_counter(), len(times)
            for batch in islice(source, batches - len(times)):
                times.append(time.perf_counter() - began)
                largest = max(largest, batch.inputs.nbytes + batch.targets.nbytes + batch.weight.nbytes)
                began = time.perf_counter()
            if len(times) == before:
                raise UserError(f"{config.name}: an epoch without batches")
            epoch += 1
        growth = memory.growth
    return dataset.describe(), Alone(opened, median(times), max(times), largest, growth)


def input_share(records: Sequence[dict[str, float]]) -> tuple[float, float, int]:
    """Median step (s), share of the steps' time in waiting for data, and how many steps were counted."""
    middle = median(record["seconds"] for record in records)
    counted = [record for record in records if record["seconds"] < COMPILING * middle]
    total = sum(record["seconds"] for record in counted)
    return middle, sum(record["seconds"] * record["share_input"] for record in counted) / total, len(counted)


def _run(name: str, bench: Bench) -> tuple[float, float, int]:
    """A run in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="dist-mp-bench-") as folder:
        fixed = [f"run_folder={folder}", f"train.max_steps={bench.steps}", "train.log_every=1", "train.epochs=1000"]
        fixed += ["evaluation.test=false"]
        command = [sys.executable, "-m", "dist_mp", "run", "-n", str(bench.ranks), name, *bench.overrides, *fixed]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise UserError(f"{name}: the run ended with status {done.returncode}: {said[-1] if said else 'no word'}")
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        lines = metrics.read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    # The first step compiles.
    return input_share(records[1:] or records)


def run_bench(bench: Bench) -> list[Row]:
    """Measure each configuration and print the table; the result is also written where `bench.out` says."""
    names = bench.configurations or tuple(settings.bundled_configs())
    configs = {name: settings.load(name, bench.overrides) for name in names}
    rows = []
    for name, config in configs.items():
        described, alone = measure_alone(config, bench.ranks, bench.batches)
        middle, share, steps = _run(name, bench)
        rows.append(Row(Path(name).name, described, alone, middle, share, steps))
    print_table(Console(), rows, bench.ranks)
    if bench.out is not None:
        content = {"ranks": bench.ranks, "limit": LIMIT, "rows": [asdict(row) for row in rows]}
        bench.out.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return rows


def print_table(console: Console, rows: Sequence[Row], ranks: int) -> None:
    """A line a configuration."""
    table = Table(title=f"input on {ranks} ranks; the wait for it should be below {LIMIT:.0%} of a step")
    table.add_column("data of", no_wrap=True)
    for heading in ("open", "batch", "size", "memory", "step", "wait"):
        table.add_column(heading, justify="right")
    for row in rows:
        alone = row.alone
        table.add_row(
            row.configuration,
            f"{alone.open_seconds:.2f} s",
            f"{1e3 * alone.batch_seconds:.2f} ms",
            f"{alone.batch_bytes / 2**20:.2f} MiB",
            f"{alone.memory_bytes / 2**20:.0f} MiB",
            f"{1e3 * row.step_seconds:.1f} ms",
            f"{row.share_input:.2%}{'' if row.keeps_up else ' (too much)'}",
        )
    console.print(table)
