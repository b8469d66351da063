"""Tables of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from dist_mp.experiments.report.axes import short
from dist_mp.experiments.report.bars import stacked_bar
from dist_mp.experiments.report.run import Run
from dist_mp.experiments.run_reader import PARTS, number
from dist_mp.experiments.run_state import duration, rank_times

SLOWEST_RANKS = 12
"""Ranks of a run in the table."""
LONGEST_CELL = 400
HIGHER_IS_BETTER = {"auc": True, "accuracy": True, "loss": False, "perplexity": False}
"""Held-out metrics whose better end is known."""


@dataclass(frozen=True)
class Cell:
    """One cell: what it shows, and what it is sorted by."""

    text: str
    sort: float | None = None
    """Number to sort by; None: by the text."""
    mark: str = ""
    """``best``, ``differs`` or nothing."""
    run: int | None = None
    """The run whose colour stands before it."""
    drawing: Markup | None = None
    """Shown instead of the text."""


@dataclass(frozen=True)
class Table:
    """A table that can be sorted by each column."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    numeric: frozenset[int] = frozenset()
    """Columns of numbers, which stand right."""


def value_cell(value: float, text: str | None = None, mark: str = "") -> Cell:
    """A number; what is none sorts last."""
    return Cell(short(value) if text is None else text, value if math.isfinite(value) else math.nan, mark)


def text_cell(text: str, mark: str = "") -> Cell:
    """A text, cut where it is very long."""
    return Cell(text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "…", mark=mark)


def run_cell(run: Run) -> Cell:
    """The name of a run with its colour."""
    return Cell(run.label, run=run.number)


def overview(runs: Sequence[Run]) -> Table:
    """What each run came to."""
    names = list(dict.fromkeys(name for run in runs for name in metrics(run)))
    columns = ["run", "state", "ranks", "precision", "steps", "skipped", "train loss"]
    columns += [*map(metric_name, names), "samples/s", "time"]
    best = {name: _best([metrics(run).get(name, math.nan) for run in runs], name) for name in names}
    rows = []
    for run in runs:
        shot, seconds = run.shot, run_seconds(run)
        found = [metrics(run).get(name, math.nan) for name in names]
        rows.append(
            [
                run_cell(run),
                Cell(shot.state),
                value_cell(shot.ranks, str(shot.ranks)),
                Cell(precision(run)),
                value_cell(shot.step, f"{shot.step:,}"),
                value_cell(shot.skipped, f"{shot.skipped:,}"),
                value_cell(train_loss(run)),
                *(
                    value_cell(value, mark="best" if value == best[name] else "")
                    for name, value in zip(names, found, strict=True)
                ),
                value_cell(throughput(run)),
                value_cell(seconds, duration(seconds) if math.isfinite(seconds) else "n/a"),
            ]
        )
    numeric = frozenset(range(2, len(columns))) - {3}
    return Table("What each run came to", columns, rows, numeric)


def metrics(run: Run) -> dict[str, float]:
    """Held-out metrics of the end, else of the last evaluation so far."""
    said = (run.data.summary or {}).get("metrics")
    if isinstance(said, dict) and said:
        return {str(name): number(value) for name, value in said.items()}
    return run.shot.held_out


def metric_name(name: str) -> str:
    """A metric in words: those of test data say so themselves, a threshold is of neither."""
    return name.replace("_", " ") if name.startswith("test_") or name == "threshold" else f"held-out {name}"


def _best(values: Sequence[float], metric: str) -> float:
    finite = [value for value in values if math.isfinite(value)]
    higher = HIGHER_IS_BETTER.get(metric.removeprefix("test_"))
    if len(values) < 2 or not finite or higher is None:
        return math.nan
    return max(finite) if higher else min(finite)


def precision(run: Run) -> str:
    """The type it computed in."""
    facts = run.data.start.get("run")
    said = str(facts.get("precision", "")) if isinstance(facts, dict) else ""
    return said.partition(",")[0] or run.settings.get("precision", "n/a")


def train_loss(run: Run) -> float:
    """Mean over the last epoch that is done, else over the last steps."""
    if run.data.epochs:
        return number(run.data.epochs[max(run.data.epochs)].get("train_loss"))
    return run.shot.loss


def throughput(run: Run) -> float:
    """Rows of all ranks per second over the run, else over the last steps."""
    return number((run.data.summary or {}).get("samples_per_second", run.shot.samples_per_second))


def run_seconds(run: Run) -> float:
    """Wall time, without stops where the records tell."""
    elapsed = run.elapsed
    said = number((run.data.summary or {}).get("seconds"))
    if len(run.data.starts) > 1 or not math.isfinite(said):
        return float(elapsed[-1]) if len(elapsed) else math.nan
    return said


def mean_parts(run: Run) -> np.ndarray:
    """Seconds a step of each part of PARTS, means over all ranks and the steps since the last start; NaN if unknown."""
    if run.data.rank_steps and run.data.rank_seconds.size:
        means: np.ndarray = run.data.rank_seconds.mean(axis=1) / run.data.rank_steps
        return means
    seconds = run.data.column("seconds")
    shares = np.stack([run.data.column(f"share_{part}") for part in PARTS])
    good = np.isfinite(seconds) & np.isfinite(shares).all(axis=0)
    return (shares[:, good] * seconds[good]).mean(axis=1) if good.any() else np.full(len(PARTS), np.nan)


def time_table(runs: Sequence[Run]) -> Table:
    """Where a step's time goes in each run."""
    parts = [mean_parts(run) for run in runs]
    longest = max((float(np.nansum(part)) for part in parts), default=0.0)
    rows = []
    for run, part in zip(runs, parts, strict=True):
        total = float(part.sum())
        shares = [value_cell(100 * float(value) / total if total > 0 else math.nan) for value in part]
        bar = Cell("", total, drawing=Markup(stacked_bar(list(part), longest)))
        rows.append([run_cell(run), bar, value_cell(total, f"{short(total)} s"), *_percent(shares)])
    columns = ["run", "a step", "seconds", *(f"{part} %" for part in PARTS)]
    return Table("Where a step's time goes, mean over the ranks", columns, rows, frozenset(range(2, 7)))


def _percent(cells: Sequence[Cell]) -> list[Cell]:
    return [Cell("n/a" if math.isnan(c.sort or 0.0) else f"{c.sort:.1f}", c.sort) for c in cells]


def rank_table(runs: Sequence[Run]) -> Table:
    """The slowest ranks of each run."""
    rows = []
    for run in runs:
        if not run.data.rank_steps:
            continue
        ranks = rank_times(run.data.rank_seconds / run.data.rank_steps, run.data.start.get("hosts"))
        longest = max((sum(getattr(r, part) for part in PARTS) for r in ranks), default=0.0)
        for rank in sorted(ranks, key=lambda r: -r.excess)[:SLOWEST_RANKS]:
            times = [getattr(rank, part) for part in PARTS]
            bar = Markup(stacked_bar(times, longest, height=12, width=160))
            rows.append(
                [
                    run_cell(run),
                    value_cell(rank.rank, str(rank.rank)),
                    text_cell(rank.host),
                    Cell("", sum(times), drawing=bar),
                    *(Cell(f"{1000 * value:.1f}", value) for value in times),
                    Cell(f"{rank.excess:+.1%}", rank.excess, "differs" if rank.straggles else ""),
                ]
            )
    columns = ["run", "rank", "host", "a step", *(f"{part} ms" for part in PARTS), "own work to median"]
    return Table("Slowest ranks", columns, rows, frozenset({1, 4, 5, 6, 7, 8}))


def bytes_table(runs: Sequence[Run]) -> Table:
    """What rank 0 sent, and how fast."""
    rows = []
    for run in runs:
        sent = run.data.column("sent_bytes")
        mean = float(np.nanmean(sent)) if np.isfinite(sent).any() else math.nan
        numbers = number((run.data.summary or {}).get("gradient_numbers"))
        exchange = float(mean_parts(run)[PARTS.index("exchange")])
        facts = run.data.start.get("run")
        words = str(facts.get("exchange", "n/a")) if isinstance(facts, dict) else "n/a"
        rows.append(
            [
                run_cell(run),
                text_cell(words),
                value_cell(numbers, f"{numbers:,.0f}" if math.isfinite(numbers) else None),
                value_cell(mean / 2**20),
                value_cell(mean / numbers if numbers > 0 else math.nan),
                value_cell(mean * run.shot.step / 2**30),
                value_cell(mean / exchange / 1e6 if exchange > 0 else math.nan),
            ]
        )
    columns = [
        "run",
        "exchange",
        "gradient numbers",
        "MiB a step",
        "bytes a number",
        "GiB in all",
        "MB/s in the exchange",
    ]
    return Table("Bytes that rank 0 sent", columns, rows, frozenset(range(2, 7)))


def difference_table(
    caption: str, runs: Sequence[Run], facts: Callable[[Run], dict[str, str]], *, all_rows: bool
) -> Table:
    """Facts of the runs side by side; a cell that is not as the first run's is marked.

    Args:
        caption: title.
        runs: a column each.
        facts: name to value.
        all_rows: show those as well in which the runs are equal.
    """
    sides = [facts(run) for run in runs]
    names = list(dict.fromkeys(name for side in sides for name in side))
    rows = []
    for name in names:
        values = [side.get(name, "n/a") for side in sides]
        if all_rows or any(value != values[0] for value in values):
            marks = ["" if value == values[0] else "differs" for value in values]
            rows.append([Cell(name), *(text_cell(v, m) for v, m in zip(values, marks, strict=True))])
    return Table(caption, ["", *(run.label for run in runs)], rows)


def changed_table(run: Run) -> Table:
    """Settings of one run that are not the defaults."""
    rows = [
        [Cell(path), text_cell(value), text_cell(run.defaults[path])]
        for path, value in run.settings.items()
        if path in run.defaults and value != run.defaults[path]
    ]
    return Table("Settings that differ from the defaults", ["setting", "value", "default"], rows)
