"""Charts of curves as SVG, one line a run, with the numbers beside for those who cannot see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

from dist_mp.experiments.report.axes import Axis, position_axis, scale_axis, short, tick_label, value_axis
from dist_mp.experiments.report.series import Series

WIDTH, HEIGHT = 480, 256
LEFT, RIGHT, TOP, BOTTOM = 54, 16, 14, 40
COLOURS = 6
"""Runs before colours repeat with other dashes."""
DOTS = 16
"""Curves of up to so many points have a dot at each."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """A chart of the report, drawn."""

    key: str
    """Its id in the page."""
    title: str
    note: str
    """Unit, and what to know when reading it."""
    svg: str
    points: str
    """The drawn numbers as JSON, for the readout."""
    numbers: list[dict[str, str]] = field(default_factory=list)
    """A row a run: run, first, smallest, largest, last, values."""
    thinned: bool = False
    missing: int = 0
    """Values that are no finite numbers."""


def draw(
    key: str,
    title: str,
    note: str,
    series: Sequence[Series],
    *,
    x_label: str = "step",
    x_zero: bool = False,
    zero: bool = False,
    powers_of_two: bool = False,
    marks: Sequence[Series] = (),
    square: bool = False,
) -> Chart | None:
    """A chart of `series`, or None where they have no value at all.

    Args:
        key: id in the page, a word.
        title: what is shown.
        note: unit and remarks.
        series: the curves.
        x_label: what the positions are.
        x_zero: whether the axis of positions begins at 0.
        zero: whether a linear axis of values begins at 0.
        powers_of_two: whether the values are loss scales.
        marks: positions to be marked at the foot, for example skipped steps; a point for each.
        square: both axes from 0 to 1, with the diagonal, for ROC curves.
    """
    series = [s for s in series if len(s.x)]
    if not any(np.isfinite(s.mean).any() for s in series):
        return None
    x = position_axis([s.x for s in series], LEFT, WIDTH - RIGHT, zero=x_zero)
    edges = [edge for s in series for edge in (s.low, s.high)]
    bottom, top = HEIGHT - BOTTOM, TOP
    y = scale_axis(edges, bottom, top) if powers_of_two else value_axis(edges, bottom, top, zero=zero)
    if square:
        x, y = Axis(0.0, 1.0, LEFT, WIDTH - RIGHT), Axis(0.0, 1.0, bottom, top)
    parts = [_grid(x, y, x_label)]
    if square:
        parts.append(f'<path class="diagonal" d="M{LEFT} {bottom}L{WIDTH - RIGHT} {top}"/>')
    parts += [_curve(s, x, y) for s in series]
    parts += [_marks(s, x, bottom) for s in marks if len(s.x)]
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{top}" y2="{bottom}" visibility="hidden"/>')
    label = escape(f"{title}. {summary(series)}")
    svg = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )
    return Chart(
        key=key,
        title=title,
        note=note + (f"; {'logarithmic' if y.log else ''}" if y.log and not powers_of_two else ""),
        svg=svg,
        points=_points(series, x, x_label),
        numbers=[_numbers(s) for s in series],
        thinned=any(s.thinned for s in series),
        missing=int(sum(s.missing.sum() for s in series)),
    )


def summary(series: Sequence[Series]) -> str:
    """A chart in a sentence."""
    shown = [f"{s.label}: from {short(_first(s))} to {short(s.last)}" for s in series[:6]]
    rest = f", and {len(series) - 6} more runs" if len(series) > 6 else ""
    return "; ".join(shown) + rest


def run_class(run: int) -> str:
    """The classes by which a run has its colour and dashes."""
    return f"c{run % COLOURS} d{run // COLOURS % 3}"


def json_text(value: object) -> str:
    """JSON that may stand within a script element: no ``<`` and no NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def _grid(x: Axis, y: Axis, x_label: str) -> str:
    parts = ['<g class="grid">']
    for tick in y.ticks():
        at = _at(y, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="y" x="{LEFT - 8}" y="{at + 4:.1f}">{tick_label(y, tick)}</text>')
    bottom = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    ticks = [tick for tick in x.ticks(4) if x_label not in ("step", "epoch") or tick == round(tick)]
    for tick in ticks:
        parts.append(f'<text class="x" x="{_at(x, tick):.1f}" y="{bottom + 17}">{escape(short(tick))}</text>')
    parts.append(f'<text class="name" x="{WIDTH - RIGHT}" y="{bottom + 34}">{escape(x_label)}</text></g>')
    return "".join(parts)


def _at(axis: Axis, value: float) -> float:
    return float(axis.place(np.array([value]))[0])


def _curve(series: Series, x: Axis, y: Axis) -> str:
    xs, low, mean, high = x.place(series.x), y.place(series.low), y.place(series.mean), y.place(series.high)
    parts = [f'<g class="run {run_class(series.run)}" data-run="{series.run}">']
    band, line = [], []
    good = np.isfinite(mean)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(np.int8)))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        stretch = slice(begin, end)
        if series.thinned:
            there = _path(xs[stretch], high[stretch])
            back = _path(xs[stretch][::-1], low[stretch][::-1])
            band.append(f"{there}L{back[1:]}Z")
        line.append(_path(xs[stretch], mean[stretch]) + ("h.01" if end - begin == 1 else ""))
    if band:
        parts.append(f'<path class="band" d="{"".join(band)}"/>')
    parts.append(f'<path class="line" d="{"".join(line)}"/>')
    if len(xs) <= DOTS:
        dots = zip(xs[good], mean[good], strict=True)
        parts += [f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="2.6"/>' for cx, cy in dots]
    lost = xs[series.missing > 0]
    if lost.size:
        crosses = "".join(f"M{at - 3:.1f} {TOP - 9}l6 6m0 -6l-6 6" for at in lost)
        parts.append(f'<path class="lost" d="{crosses}"/>')
    return "".join(parts) + "</g>"


def _path(xs: Array, ys: Array) -> str:
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in zip(xs, ys, strict=True))


def _marks(series: Series, x: Axis, bottom: float) -> str:
    ticks = "".join(f"M{at:.1f} {bottom}v-9" for at in x.place(series.x))
    return f'<path class="mark run {run_class(series.run)}" data-run="{series.run}" d="{ticks}"/>'


def _points(series: Sequence[Series], x: Axis, x_label: str) -> str:
    def numbers(values: Array) -> list[float | None]:
        return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]

    curves = [
        {
            "run": s.run,
            "label": s.label,
            "x": numbers(s.x),
            "px": [round(float(at), 1) for at in x.place(s.x)],
            "mean": numbers(s.mean),
        }
        | ({"low": numbers(s.low), "high": numbers(s.high)} if s.thinned else {})
        for s in series
    ]
    return json_text({"x": x_label, "width": WIDTH, "curves": curves})


def _first(series: Series) -> float:
    finite = series.mean[np.isfinite(series.mean)]
    return float(finite[0]) if finite.size else np.nan


def _numbers(series: Series) -> dict[str, str]:
    finite = np.isfinite(series.mean)
    smallest, largest = (series.low[finite].min(), series.high[finite].max()) if finite.any() else (np.nan, np.nan)
    lost = int(series.missing.sum())
    return {
        "run": series.label,
        "number": str(series.run),
        "first": short(_first(series)),
        "smallest": short(float(smallest)),
        "largest": short(float(largest)),
        "last": short(series.last),
        "values": f"{series.values:,}" + (f", {lost:,} not finite" if lost else ""),
    }
