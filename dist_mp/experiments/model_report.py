"""What ``dist-mp bench model`` shows: tables, and plots in the manner of the benchmark paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dist_mp.errors import UserError

KINDS = ("products", "gates", "softmax", "update", "exchange", "other operations", "rest")


@dataclass(frozen=True)
class Row:
    """One system at one size; medians over the rounds."""

    system: str
    precision: str
    layers: int
    rows: int
    units: int
    seconds: float | None
    """A step (s); None: out of memory."""
    round_seconds: list[float] = field(default_factory=list)
    """The median step of each round (s)."""
    flops: float | None = None
    """Operations of the products of a step by its whole time (1/s)."""
    products_flops: float | None = None
    """The same operations by the time that the products take by themselves (1/s)."""
    peak_flops: float | None = None
    """Rate of a product of two square matrices of 2048 (1/s)."""
    peak_bytes: int | None = None
    """Most memory that the process held beyond its start."""
    tensor_bytes: int | None = None
    """Most bytes of tensors of 256 KiB and more at a time in a step, the weights among them (ours only)."""
    shares: dict[str, float] | None = None
    """Share of a step's time by kind of operation; the keys are `KINDS`."""

    @property
    def size(self) -> tuple[int, int, int]:
        """L, B and N."""
        return self.layers, self.rows, self.units


def ratios(rows: Sequence[Row], row: Row) -> dict[str, float]:
    """How many times as fast `row` is as each other system at its size: the median of the rounds' ratios."""
    from statistics import median

    if row.seconds is None:
        return {}
    others = [r for r in rows if r.size == row.size and r.system != row.system and r.seconds is not None]
    return {
        other.system: median(b / a for a, b in zip(row.round_seconds, other.round_seconds, strict=True))
        for other in others
    }


def print_tables(console: Console, rows: Sequence[Row], length: int, vocabulary: int, threads: int) -> None:
    """A table of times and rates, and one of the shares."""
    times = Table(
        title=f"Language model, T={length} V={vocabulary:,}, {threads} thread{'s' * (threads > 1)} (OOM: no memory)"
    )
    for title in (
        "system",
        "L",
        "B",
        "N",
        "ms",
        "GFLOP/s",
        "products alone",
        "of it",
        "of peak",
        "peak MB",
        "tensors MB",
    ):
        times.add_column(title, justify="left" if title == "system" else "right")
    faster = Table(title="Times as fast as")
    names = list(dict.fromkeys(row.system for row in rows))
    for title in ("system", "L", "B", "N", *names):
        faster.add_column(title, justify="left" if title == "system" else "right")
    shares = Table(title="Share of the step (%)")
    for title in ("system", "L", "B", "N", *KINDS):
        shares.add_column(title, justify="left" if title == "system" else "right")
    for row in rows:
        head = (row.system, *map(str, row.size))
        if row.seconds is None or row.flops is None:
            times.add_row(*head, "OOM")
            continue
        alone, peak = row.products_flops, row.peak_flops
        times.add_row(
            *head,
            f"{1e3 * row.seconds:.0f}",
            f"{row.flops / 1e9:.0f}",
            "" if alone is None else f"{alone / 1e9:.0f}",
            "" if alone is None else f"{100 * row.flops / alone:.0f}%",
            "" if peak is None else f"{100 * row.flops / peak:.0f}%",
            "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
            "" if row.tensor_bytes is None else f"{row.tensor_bytes / 1e6:.0f}",
        )
        beside = ratios(rows, row)
        faster.add_row(*head, *(f"{beside[name]:.2f}" if name in beside else "" for name in names))
        if row.shares is not None:
            shares.add_row(*head, *(f"{100 * row.shares[kind]:.1f}" for kind in KINDS))
    for table in (times, *([faster] if len(names) > 1 else []), *([shares] if shares.row_count else [])):
        console.print(table)


def write_plots(folder: Path, rows: Sequence[Row]) -> None:
    """`end_to_end.png` and `products.png`: rate over B, a panel for each L; `shares.png`: shares as stacked bars.

    Raises:
        UserError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("bench model: the plots need matplotlib: pip install matplotlib") from error
    for name, title, value in (
        ("end_to_end", "whole step", lambda row: row.flops),
        ("products", "matrix products alone", lambda row: row.products_flops),
    ):
        layers = sorted({row.layers for row in rows})
        figure = Figure(figsize=(5 * len(layers) + 1, 4.5), layout="constrained")
        for number, count in enumerate(layers, 1):
            _rates(figure.add_subplot(1, len(layers), number), [r for r in rows if r.layers == count], value)
            figure.axes[-1].set_title(f"{title}, L={count}")
        figure.savefig(folder / f"{name}.png")
    shown = [row for row in rows if row.shares is not None]
    figure = Figure(figsize=(max(6.0, 0.8 * len(shown) + 3), 5), layout="constrained")
    axes = figure.add_subplot()
    labels = [f"{row.system}\nL={row.layers} B={row.rows}\nN={row.units}" for row in shown]
    bottom = [0.0] * len(shown)
    for kind in KINDS:
        heights = [100 * (row.shares or {})[kind] for row in shown]
        axes.bar(labels, heights, bottom=bottom, label=kind)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set_ylabel("share of the step (%)")
    axes.tick_params(axis="x", labelsize="x-small")
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(folder / "shares.png")


def _rates(axes: Any, rows: Sequence[Row], value: Any) -> None:
    for system, units in dict.fromkeys((row.system, row.units) for row in rows):
        points = sorted((r.rows, value(r) / 1e9) for r in rows if (r.system, r.units) == (system, units) and value(r))
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=f"{system}, N={units}")
        for row in rows:
            if (row.system, row.units) == (system, units) and row.seconds is None:
                axes.plot([row.rows], [0], marker="x", color="black")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows B (x: out of memory)")
    axes.set_ylabel("GFLOP/s")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="x-small")
