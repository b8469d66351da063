"""The page: its sections in order, and one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2

from dist_mp import __version__
from dist_mp.errors import UserError
from dist_mp.experiments.report import curves, evaluation, tables
from dist_mp.experiments.report.axes import short
from dist_mp.experiments.report.bars import strip
from dist_mp.experiments.report.chart import Chart, run_class
from dist_mp.experiments.report.run import Run, read_runs
from dist_mp.experiments.report.tables import Table
from dist_mp.experiments.run_reader import METRICS_FILE, PARTS
from dist_mp.experiments.run_state import duration

STRIP_RANKS = 4
"""Ranks from which on their spread is drawn."""
SHOWN_HOSTS = 12


@dataclass(frozen=True)
class Strip:
    """How the ranks of a run spread."""

    run: int
    label: str
    words: str
    svg: str


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    title: str
    text: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    charts: Sequence[Chart] = ()
    tables: list[Table] = field(default_factory=list)
    folds: list[Table] = field(default_factory=list)
    """Tables that are folded up at first."""
    strips: list[Strip] = field(default_factory=list)
    parts_legend: bool = False


def write_report(folders: Sequence[Path], out: Path) -> int:
    """Write the report on the runs in `folders` to `out`, whole or not at all; returns its size (B).

    Raises:
        UserError: one of `folders` is no run folder, or `out` cannot be written.
    """
    page = render(read_runs(folders))
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        os.replace(partial, out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    return len(page.encode())


def render(runs: Sequence[Run], now: float | None = None) -> str:
    """The page as HTML.

    Args:
        runs: in the order in which they are shown.
        now: moment that the page names (s since 1970; default: this one).
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dist_mp.experiments.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    style, script = _text("report.css"), _text("report.js")
    moment = time.gmtime(time.time() if now is None else now)
    return environment.get_template("report.html.j2").render(
        runs=runs,
        run_class=run_class,
        title=runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared",
        lead=_lead(runs),
        tiles=_tiles(runs[0]) if len(runs) == 1 else [],
        sections=sections(runs),
        version=__version__,
        written=time.strftime("%d %B %Y at %H:%M UTC", moment),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
    )


def sections(runs: Sequence[Run]) -> list[Section]:
    """All sections, in their order on the page."""
    training = curves.training_charts(runs)
    text = []
    if any(chart.thinned for chart in training):
        text.append(
            "Long curves are cut into stretches: the line is the mean of a stretch, the band reaches from its smallest "
            "to its largest value."
        )
    if not training:
        text.append("No step has been recorded yet.")
    remarks = [(run.label, _remarks(run, alone=len(runs) == 1)) for run in runs]
    told = remarks[0][1] if len(runs) == 1 else [f"{label}: {' '.join(lines)}" for label, lines in remarks if lines]
    every = [
        Section("overview", "Overview", remarks=told, tables=[tables.overview(runs)] if len(runs) > 1 else []),
        Section("training", "Training", text, charts=training),
        _evaluation(runs),
        _time(runs),
        _settings(runs),
        Section(
            "environment",
            "Environment",
            ["As rank 0 saw it at the last start."],
            tables=[tables.difference_table("What the runs ran on", runs, environment_facts, all_rows=True)],
        ),
    ]
    return [section for section in every if section.remarks or section.tables or section.charts or section.text]


def _evaluation(runs: Sequence[Run]) -> Section:
    found = evaluation.read_evaluations(runs)
    return Section(
        "evaluation",
        "Evaluation",
        charts=evaluation.evaluation_charts(found),
        tables=evaluation.evaluation_tables(found),
    )


def _time(runs: Sequence[Run]) -> Section:
    text = [
        "Compute is forward, backward and update; exchange is encoding, moving, summing and decoding of gradients; "
        "wait is waiting for other ranks; input is waiting for data."
    ]
    slow = tables.rank_table(runs)
    return Section(
        "time",
        "Time and bytes",
        text,
        charts=curves.speed_charts(runs),
        tables=[tables.time_table(runs), *([slow] if slow.rows else []), tables.bytes_table(runs)],
        strips=_strips(runs),
        parts_legend=True,
    )


def _strips(runs: Sequence[Run]) -> list[Strip]:
    strips = []
    for run in runs:
        data = run.data
        if data.rank_steps and data.rank_seconds.shape[1] >= STRIP_RANKS:
            own = (
                data.rank_seconds[PARTS.index("compute")] + data.rank_seconds[PARTS.index("input")]
            ) / data.rank_steps
            words = f"own work of its {len(own):,} ranks, from 0 to {short(float(own.max()))} s a step; black: median"
            strips.append(Strip(run.number, run.label, words, strip(own, run_class(run.number))))
    return strips


def _settings(runs: Sequence[Run]) -> Section:
    if len(runs) > 1:
        table = tables.difference_table("Settings that differ", runs, lambda run: run.settings, all_rows=False)
        text = [] if table.rows else ["All runs have the same settings."]
    else:
        table = tables.changed_table(runs[0])
        text = [] if table.rows else ["All settings have their defaults, or the folder has no config.yaml to read."]
    whole = tables.difference_table("All settings", runs, lambda run: run.settings, all_rows=True)
    return Section("settings", "Settings", text, tables=[table] if table.rows else [], folds=[whole])


def environment_facts(run: Run) -> dict[str, str]:
    """What a run ran on, from its newest start record."""
    start = run.data.start
    facts: dict[str, str] = {}
    for group in ("run", "hardware", "software", "variables"):
        facts |= {str(name): str(value) for name, value in _mapping(start.get(group)).items()}
    hosts = [str(host) for host in start["hosts"]] if isinstance(start.get("hosts"), list) else []
    if hosts:
        distinct = list(dict.fromkeys(hosts))
        more = f" and {len(distinct) - SHOWN_HOSTS} more" if len(distinct) > SHOWN_HOSTS else ""
        facts["hosts"] = ", ".join(distinct[:SHOWN_HOSTS]) + more
    if isinstance(start.get("command"), list):
        facts["command"] = shlex.join(str(word) for word in start["command"])
    if start.get("folder"):
        facts["working directory"] = str(start["folder"])
    if run.data.starts and run.data.start.get("time"):
        facts["started"] = _moment(run.data.starts[0].get("time"))
    weights = _mapping(run.data.summary).get("weights")
    if weights:
        facts["hash of the final weights"] = str(weights)
    return facts


def _remarks(run: Run, *, alone: bool) -> list[str]:
    """What a reader should know before trusting the numbers of a run; `alone` where no table of runs has a part."""
    shot, data, lines = run.shot, run.data, []
    if shot.state != "ended":
        lines.append(f"State: {shot.explanation}. The numbers are those so far.")
    if shot.skipped and alone:
        lines.append(f"{shot.skipped:,} of {shot.step:,} steps were skipped: the gradient was not finite.")
    if data.repeated_steps:
        lines.append(f"{data.repeated_steps:,} steps were done again after a restart; the later records are shown.")
    slow = [str(rank.rank) for rank in shot.stragglers[:5]]
    if slow:
        more = f" and {len(shot.stragglers) - 5} more" if len(shot.stragglers) > 5 else ""
        lines.append(f"Slow at the end: rank {', '.join(slow)}{more}. The others wait for it in each step.")
    if data.bad_lines:
        lines.append(f"{data.bad_lines:,} damaged lines of {METRICS_FILE} were passed over.")
    return lines


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    shot, seconds = run.shot, tables.run_seconds(run)
    tiles = [(tables.metric_name(name), short(value), "") for name, value in list(tables.metrics(run).items())[:3]]
    tiles += [
        ("train loss", short(tables.train_loss(run)), ""),
        ("steps", f"{shot.step:,}", f"{shot.skipped:,} skipped" if shot.skipped else "none skipped"),
        ("throughput", short(tables.throughput(run)), "samples/s"),
        ("time", duration(seconds) if math.isfinite(seconds) else "n/a", shot.state),
    ]
    return tiles


def _lead(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return ", ".join(run.label for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    facts = _mapping(runs[0].data.start.get("run"))
    return ". ".join(str(facts[name]) for name in ("model", "data", "ranks") if facts.get(name)) or "No start recorded."


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _moment(value: object) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(str(value))))
    except (ValueError, OverflowError, OSError):
        return "n/a"


def _text(name: str) -> str:
    return (resources.files("dist_mp.experiments.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Of an inline script or style, for the page's content security policy: nothing else may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
