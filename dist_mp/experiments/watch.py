"""``dist-mp watch``: runs as they go, on a terminal or as plain lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dist_mp.experiments.run_reader import PARTS, RunData, RunReader
from dist_mp.experiments.run_state import RankTime, Snapshot, duration, snapshot

SHOWN_RANKS = 8
"""Ranks of a run on the screen; the slowest where there are more."""
SPARK = "▁▂▃▄▅▆▇█"
SPARK_COLUMNS = 40
BAR_COLUMNS = 24
PANEL_COLUMNS = 70
PART_STYLES = {"compute": "blue", "exchange": "yellow", "wait": "magenta", "input": "cyan"}
PART_FILL = {"compute": "█", "exchange": "▓", "wait": "░", "input": "▒"}
"""The parts of a bar differ without colour too."""
STATE_STYLES = {"running": "green", "ended": "bold", "stopped": "bold yellow", "died": "bold red", "silent": "yellow"}


def watch(
    folders: Sequence[Path],
    console: Console,
    *,
    once: bool,
    interval_seconds: float = 1.0,
    clock: Callable[[], float] = time.time,
) -> None:
    """Show the runs in `folders` until all of them have ended or died.

    Args:
        folders: run folders.
        console: where to; without a terminal one snapshot is printed, as with `once`.
        once: print one snapshot as plain text, for scripts.
        interval_seconds: the time between two looks (s).
        clock: the moment now (s since 1970).

    Raises:
        UserError: one of `folders` is no run folder.
    """
    readers = [RunReader(folder) for folder in folders]
    for reader in readers:
        reader.poll()
    if once or not console.is_terminal:
        for number, reader in enumerate(readers):
            if number:
                console.print()
            for line in plain_lines(snapshot(reader.data, clock())):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            shots = [(reader.data, snapshot(reader.data, clock())) for reader in readers]
            live.update(screen(shots), refresh=True)
            if not any(shot.lives for _, shot in shots):
                return
            time.sleep(interval_seconds)
            for reader in readers:
                reader.poll()


def plain_lines(shot: Snapshot) -> list[str]:
    """A snapshot as lines ``NAME  VALUE`` that a script can take apart; every name is there, ``-`` for no value."""
    rows: list[tuple[str, str]] = [
        ("run", shot.name),
        ("state", shot.state),
        ("explanation", shot.explanation),
        ("ranks", str(shot.ranks)),
        ("step", str(shot.step)),
        ("expected_steps", _whole(shot.expected_steps)),
        ("epoch", str(shot.epoch)),
        ("epochs", _whole(shot.epochs)),
        ("restarts", str(shot.restarts)),
        ("skipped_steps", str(shot.skipped)),
        ("loss", _plain(shot.loss)),
        ("learning_rate", _plain(shot.learning_rate)),
        ("loss_scale", _plain(shot.loss_scale)),
        ("gradient_norm", _plain(shot.gradient_norm)),
        ("samples_per_second", _plain(shot.samples_per_second)),
        ("step_seconds", _plain(shot.step_seconds)),
        ("sent_bytes", _plain(shot.sent_bytes)),
        ("remaining_seconds", _plain(math.nan if shot.remaining_seconds is None else shot.remaining_seconds)),
    ]
    rows += [(f"share_{part}", _plain(share)) for part, share in shot.shares.items()]
    rows += [(f"held_out_{_one_word(name)}", _plain(value)) for name, value in shot.held_out.items()]
    for rank in shot.rank_times:
        parts = " ".join(f"{part} {share:.1%}" for part, share in rank.shares().items())
        rows.append((f"rank_{rank.rank}", f"host {_one_word(rank.host) or '-'} {parts} excess {rank.excess:+.1%}"))
    rows.append(("stragglers", " ".join(str(rank.rank) for rank in shot.stragglers) or "-"))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {_printable(value)}" for name, value in rows]


def screen(shots: Sequence[tuple[RunData, Snapshot]]) -> RenderableType:
    """All runs, side by side where the terminal is wide enough."""
    panels = [_panel(data, shot) for data, shot in shots]
    return panels[0] if len(panels) == 1 else Columns(panels, padding=(0, 1))


def sparkline(values: np.ndarray, columns: int = SPARK_COLUMNS) -> str:
    """Values as a line of blocks, oldest first: each is the mean of its stretch, ``x`` where that has no number."""
    if not np.isfinite(values).any():
        return ""
    means = []
    for stretch in np.array_split(values, min(columns, len(values))):
        finite = stretch[np.isfinite(stretch)]
        means.append(float(finite.mean()) if finite.size else math.nan)
    low, high = float(np.nanmin(means)), float(np.nanmax(means))
    top = len(SPARK) - 1
    return "".join(
        "x" if math.isnan(mean) else SPARK[round(top * (mean - low) / (high - low))] if high > low else SPARK[0]
        for mean in means
    )


def _panel(data: RunData, shot: Snapshot) -> Panel:
    parts: list[RenderableType] = [
        Text(_printable(shot.explanation), style=STATE_STYLES.get(shot.state, "")),
        _progress(shot),
        _values(data, shot),
    ]
    if shot.rank_times:
        parts += [Text(), _ranks(shot)]
    title = Text(f" {_printable(shot.name)} ", style="bold")
    return Panel(Group(*parts), title=title, title_align="left", width=PANEL_COLUMNS, padding=(0, 1))


def _progress(shot: Snapshot) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    words = f"step {shot.step:,}"
    if shot.expected_steps:
        words += f" of {shot.expected_steps:,}"
    if shot.epochs:
        words += f", epoch {shot.epoch} of {shot.epochs}"
    if shot.remaining_seconds is not None:
        words += f", {duration(shot.remaining_seconds)} to go"
    if not shot.expected_steps:
        return Text(words)
    row.add_row(ProgressBar(total=shot.expected_steps, completed=shot.step, width=14), Text(words))
    return row


def _values(data: RunData, shot: Snapshot) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    table.add_row("loss", _shown(shot.loss), sparkline(data.column("loss"), 28))
    for name, value in shot.held_out.items():
        curve = np.array([epoch["metrics"].get(name, math.nan) for _, epoch in sorted(data.epochs.items())])
        table.add_row(Text(f"held-out {_printable(name)}"), _shown(value), sparkline(curve, 28))
    table.add_row("learning rate", _shown(shot.learning_rate), sparkline(data.column("learning_rate"), 28))
    skipped = f"{shot.skipped:,} skipped" if shot.skipped else "none skipped"
    table.add_row("loss scale", f"{shot.loss_scale:g}", skipped)
    table.add_row("gradient norm", _shown(shot.gradient_norm), sparkline(data.column("gradient_norm"), 28))
    table.add_row("samples/s", f"{shot.samples_per_second:,.0f}", f"{shot.step_seconds:.3g} s a step")
    table.add_row("time", "", _bar(shot.shares, 28))
    table.add_row("", "", " ".join(f"{part} {share:.0%}" for part, share in shot.shares.items()))
    return table


def _ranks(shot: Snapshot) -> RenderableType:
    chosen: list[RankTime] = shot.rank_times
    if len(chosen) > SHOWN_RANKS:
        chosen = sorted(chosen, key=lambda rank: -rank.excess)[:SHOWN_RANKS]
    table = Table.grid(padding=(0, 1))
    for justify in ("right", "left", "left", "right"):
        table.add_column(justify=justify)  # type: ignore[arg-type]
    for rank in chosen:
        style = "bold red" if rank.straggles else ""
        words = "straggler" if rank.straggles else ""
        bar = _bar(rank.shares(), BAR_COLUMNS)
        name = Text(f"{rank.rank} {_printable(rank.host)[:14]}", style=style)
        table.add_row(name, bar, Text(f"{rank.excess:+.0%}", style=style), Text(words, style=style))
    legend = Text("rank  ")
    for part in PARTS:
        legend.append(PART_FILL[part], style=PART_STYLES[part]).append(f" {part}  ")
    legend.append("own work to median", style="dim")
    rest = len(shot.rank_times) - len(chosen)
    return Group(legend, table, *([Text(f"and {rest:,} ranks that are faster", style="dim")] if rest else []))


def _bar(shares: dict[str, float], columns: int) -> Text:
    """Shares as one bar whose parts together have `columns` characters, if they come to 1."""
    text, edge, drawn = Text(), 0.0, 0
    for part in PARTS:
        share = shares.get(part, math.nan)
        edge += share if math.isfinite(share) else 0.0
        until = min(round(edge * columns), columns)
        text.append(PART_FILL[part] * (until - drawn), style=PART_STYLES[part])
        drawn = max(drawn, until)
    return text


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _plain(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.6g}"


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def _one_word(text: str) -> str:
    return "_".join(_printable(text).split())


def _printable(text: str) -> str:
    """Without characters that would steer the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
