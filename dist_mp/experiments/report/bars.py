"""Drawings of where time goes: a bar of parts, and how the ranks of a run spread."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from dist_mp.experiments.report.axes import Axis, short
from dist_mp.experiments.run_reader import PARTS

BAR_WIDTH = 480


def stacked_bar(seconds: Sequence[float], longest: float, *, height: int = 18, width: int = BAR_WIDTH) -> str:
    """The parts of a step, in the order of PARTS, as one bar.

    Args:
        seconds: seconds of each part; what is not finite counts as none.
        longest: the seconds that take the full width.
        height: of the bar, in units of the drawing.
        width: of the drawing, in its units.
    """
    values = [max(value, 0.0) if np.isfinite(value) else 0.0 for value in seconds]
    words = ", ".join(f"{part} {short(value)} s" for part, value in zip(PARTS, values, strict=True))
    pieces, at = [], 0.0
    for part, value in zip(PARTS, values, strict=True):
        piece = width * value / longest if longest > 0 else 0.0
        if piece > 0.05:
            gap = min(1.0, piece / 3)
            pieces.append(
                f'<rect class="{part}" x="{at:.1f}" y="0" width="{max(piece - gap, 0.3):.1f}" height="{height}"/>'
            )
        at += piece
    return (
        f'<svg class="bar" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(words)}">{"".join(pieces)}</svg>'
    )


def strip(own: NDArray[np.float64], run_class: str) -> str:
    """One line for each rank at its own seconds of work a step, on an axis from 0 to the slowest rank.

    Ranks that fall on the same place of the drawing share a line.

    Args:
        own: seconds of compute and input a step of each rank, float64 [ranks].
        run_class: classes that give the colour.
    """
    finite = own[np.isfinite(own)]
    top = float(finite.max()) if finite.size else 0.0
    axis = Axis(0.0, top if top > 0 else 1.0, 4.0, BAR_WIDTH - 4.0)
    places = np.unique(np.round(axis.place(finite), 1))
    lines = "".join(f"M{at:.1f} 4v16" for at in places)
    median = float(np.median(finite)) if finite.size else 0.0
    at = float(axis.place(np.array([median]))[0])
    words = f"{len(own)} ranks, median {short(median)} s, slowest {short(top)} s a step"
    return (
        f'<svg class="strip {run_class}" viewBox="0 0 {BAR_WIDTH} 24" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(words)}"><line class="axis" x1="4" x2="{BAR_WIDTH - 4}" y1="12" y2="12"/>'
        f'<path class="line" d="{lines}"/><path class="median" d="M{at:.1f} 0v24"/></svg>'
    )
