"""``dist-mp bench step``: what the exchange adds to a training step, how much is hidden, and Horovod beside it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from dist_mp.errors import UserError
from dist_mp.experiments.rounds import horovod_peer, run_round
from dist_mp.experiments.step_ranks import Request

PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Bench:
    """What to measure; every field has the command line's default."""

    ranks: int = 2
    precisions: tuple[str, ...] = ("fp32", "bf16")
    work: Request = field(default_factory=Request)
    """The model, its exchange and the steps of a round; its precision is replaced by each of `precisions`."""
    rounds: int = 2
    peers: Path | None = None
    out: Path | None = None
    """A file for the result as JSON."""


@dataclass(frozen=True)
class Row:
    """One system in one precision; medians over all steps of all rounds."""

    system: str
    precision: str
    without: float
    """Step without an exchange (s)."""
    with_exchange: float
    """Step with it (s)."""
    ratio: float
    """with_exchange / without."""
    exchange: float | None
    """Time inside the exchange, waiting for other ranks included (s); None where it cannot be seen."""
    hidden: float | None
    """Share of that time that did not make the step longer."""
    sent_bytes: float | None
    """Bytes that a rank sent a step."""


def make_row(system: str, precision: str, rounds: Sequence[dict[str, Any]]) -> Row:
    """Pool rounds of a system."""
    without = median([t for r in rounds for t in r["without"]])
    with_exchange = median([t for r in rounds for t in r["with_exchange"]])
    exchange = hidden = sent = None
    if "exchange" in rounds[0]:
        exchange = median([t for r in rounds for t in r["exchange"]])
        hidden = min(max(1.0 - (with_exchange - without) / exchange, 0.0), 1.0) if exchange > 0 else None
        sent = rounds[0]["sent_bytes"]
    return Row(system, precision, without, with_exchange, with_exchange / without, exchange, hidden, sent)


def run_bench(bench: Bench) -> list[Row]:
    """Measure round by round, print the table, write the file.

    Raises:
        UserError: settings that cannot be measured; the peers are not there.
        JobFailedError: a job ended badly.
    """
    for precision in bench.precisions:
        if precision not in PRECISIONS:
            raise UserError(f"bench step: unknown precision {precision!r}: valid are {', '.join(PRECISIONS)}")
    peer = None if bench.peers is None else horovod_peer(bench.peers)
    console = Console()
    taken: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="dist-mp-bench-") as folder:
        for number in range(bench.rounds):
            for precision in bench.precisions:
                console.print(f"round {number + 1} of {bench.rounds}: {precision}", highlight=False)
                request = asdict(replace(bench.work, precision=precision))
                ours = [sys.executable, "-m", "dist_mp.experiments.step_ranks"]
                result = run_round(ours, request, Path(folder), ranks=bench.ranks)
                taken.setdefault(("dist_mp", precision), []).append(result)
                if peer is not None and precision != "bf16":
                    mpirun, python = peer
                    program = [python, str(Path(__file__).with_name("horovod_step.py"))]
                    result = run_round(program, request, Path(folder), ranks=bench.ranks, mpirun=mpirun)
                    taken.setdefault(("Horovod + Keras", precision), []).append(result)
    rows = [make_row(system, precision, rounds) for (system, precision), rounds in taken.items()]
    console.print(_table(bench, rows))
    if bench.out is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(bench).items()}
        content = {"settings": settings, "rows": [asdict(row) for row in rows]}
        try:
            bench.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"bench step: cannot write {bench.out} ({error.strerror})") from error
    return rows


def _table(bench: Bench, rows: Sequence[Row]) -> Table:
    work = bench.work
    sizes = f"L={work.layers} B={work.rows} N={work.units} T={work.length} V={work.vocabulary:,}"
    table = Table(title=f"Training step, {sizes}, {bench.ranks} ranks: median ms")
    for title in ("system", "precision", "without", "with exchange", "ratio", "exchange", "hidden", "sent MB"):
        table.add_column(title, justify="left" if title in ("system", "precision") else "right")
    for row in rows:
        table.add_row(
            row.system,
            row.precision,
            f"{1e3 * row.without:.0f}",
            f"{1e3 * row.with_exchange:.0f}",
            f"{row.ratio:.3f}",
            "" if row.exchange is None else f"{1e3 * row.exchange:.1f}",
            "" if row.hidden is None else f"{100 * row.hidden:.0f}%",
            "" if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.1f}",
        )
    return table
