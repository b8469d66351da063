"""What ``dist-mp bench allreduce`` shows: medians, ratios and the floor, as table, JSON and plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dist_mp.codec.table import codec_by_name, codec_names
from dist_mp.experiments.allreduce_ranks import COPY, MPI_FP16, MPI_FP32, Ranks, Sample

YARDSTICKS = (MPI_FP32, MPI_FP16, "Horovod", "Horovod fp16")
FOCUS = (65_536, 8_388_608)
"""Sizes for which all ratios are shown, where they were measured; otherwise the largest."""


MARKERS = dict(zip((COPY, *YARDSTICKS), "x^vsD", strict=True))
LINES = {"shared": "-", "pieces": "--", "native": "-."}


@dataclass(frozen=True)
class Row:
    """One method at one size."""

    method: str
    numbers: int
    median: float
    """Milliseconds a call."""
    best: float
    low: float
    """First quartile (ms)."""
    high: float
    """Third quartile (ms)."""
    calls: int
    floor: float | None
    """Time in which this rank could copy the bytes that the method has to move within a node (ms)."""
    faster_than: dict[str, float]
    """Median of each yardstick over this median."""


def floor_bytes(codec_name: str, numbers: int, ranks: int) -> float:
    """Bytes that a rank reads and writes for the mean on one node: encode, sum its piece, decode.

    4 n in and n w out, then a piece of n / R numbers from each of R ranks and one to write, then n w in and 4 n out.
    """
    wire = codec_by_name(codec_name).wire_bytes(numbers)
    return 8.0 * numbers + 3.0 * wire + (wire / ranks if ranks > 1 else -wire)


def make_rows(samples: Iterable[Sample], ranks: Ranks) -> list[Row]:
    """Pool the rounds of every method and size."""
    pooled: dict[tuple[int, str], list[float]] = {}
    for sample in samples:
        pooled.setdefault((sample.numbers, sample.method), []).extend(sample.milliseconds)
    medians = {key: median(times) for key, times in pooled.items()}
    rows = []
    for (numbers, method), times in pooled.items():
        low, _, high = quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
        codec = method.split()[0]
        floor = None
        if codec in codec_names() and (numbers, COPY) in medians and len(ranks.node_sizes) == 1:
            floor = floor_bytes(codec, numbers, ranks.size) / (8.0 * numbers) * medians[numbers, COPY]
        faster = {
            yardstick: medians[numbers, yardstick] / medians[numbers, method]
            for yardstick in YARDSTICKS
            if (numbers, yardstick) in medians and yardstick != method and method != COPY
        }
        rows.append(Row(method, numbers, medians[numbers, method], min(times), low, high, len(times), floor, faster))
    return rows


def print_tables(console: Console, rows: Sequence[Row], ranks: Ranks) -> None:
    """Medians of all sizes, then the ratios at the sizes in focus."""
    sizes = sorted({row.numbers for row in rows})
    by_place = {(row.method, row.numbers): row for row in rows}
    methods = list(dict.fromkeys(row.method for row in rows))
    nodes = " + ".join(map(str, ranks.node_sizes))
    console.print(f"Mean of a gradient over {ranks.size} ranks (nodes of {nodes}), {ranks.library}")
    table = _table("median ms by numbers in the gradient")
    for size in sizes:
        table.add_column(power(size), justify="right")
    for method in methods:
        cells = (by_place.get((method, size)) for size in sizes)
        table.add_row(method, *("" if row is None else milliseconds(row.median) for row in cells))
    console.print(table)
    for size in [size for size in FOCUS if size in sizes] or sizes[-1:]:
        console.print(_ratios([row for row in rows if row.numbers == size], size))


def _ratios(rows: Sequence[Row], size: int) -> Table:
    shown = [y for y in YARDSTICKS if any(y in row.faster_than for row in rows)]
    table = _table(f"{size:,} numbers: time, and how many times faster than the yardsticks")
    for title in ("median\nms", "quartiles\nms", "times\nfloor", *(y.replace(" ", "\n") for y in shown)):
        table.add_column(title.replace("MPI_Allreduce", "MPI"), justify="right")
    for row in rows:
        floor = "" if row.floor is None else f"{row.median / row.floor:.2f}"
        ratios = (ratio(row.faster_than[y]) if y in row.faster_than else "" for y in shown)
        spread = f"{milliseconds(row.low)}-{milliseconds(row.high)}"
        table.add_row(row.method, milliseconds(row.median), spread, floor, *ratios)
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))  # fits into 80 columns
    table.add_column("method", no_wrap=True)
    return table


def ratio(value: float) -> str:
    """Three significant digits, and no power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else "<0.01"


def milliseconds(value: float) -> str:
    """Three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.3f}"


def power(size: int) -> str:
    """2^k where it is one."""
    return f"2^{size.bit_length() - 1}" if size & (size - 1) == 0 else f"{size:,}"


def write_json(path: Path, rows: Sequence[Row], ranks: Ranks, settings: dict[str, Any]) -> None:
    """All numbers, with what they were measured on."""
    content = {"settings": settings, "ranks": asdict(ranks), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_plot(path: Path, rows: Sequence[Row], ranks: Ranks) -> None:
    """Time over size, both logarithmic; PNG or SVG by the name of the file. Needs matplotlib."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.add_subplot()
    for method in dict.fromkeys(row.method for row in rows):
        line = sorted((row.numbers, row.median) for row in rows if row.method == method)
        if method in MARKERS:  # black, each with a marker of its own
            look: dict[str, Any] = {"color": "black", "linestyle": ":", "marker": MARKERS[method]}
        else:  # a colour for each codec, a line style for each algorithm
            codec, algorithm = method.split()
            look = {
                "color": colormaps["tab20"](2 * codec_names().index(codec) % 19),
                "linestyle": LINES[algorithm],
                "marker": ".",
            }
        axes.plot(*zip(*line, strict=True), **look, label=method)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("numbers in the gradient")
    axes.set_ylabel("time for the mean over the ranks (ms, median)")
    axes.set_title(f"{ranks.size} ranks on {len(ranks.node_sizes)} node{'s' if len(ranks.node_sizes) > 1 else ''}")
    axes.grid(True, which="major", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path)
