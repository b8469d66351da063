"""``dist-mp bench allreduce``: our exchange, MPI_Allreduce and Horovod, in turn, on the same ranks.

Outside mpirun it starts jobs of its own: each round runs one of ours and then, where there are peers, one of Horovod
in its own environment, so that a slow minute of the machine meets all. Under mpirun every rank calls it, and it
measures without Horovod.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from dist_mp.codec.table import codec_by_name, codec_names
from dist_mp.comm.abort import abort_on_exception, fail
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.allreduce import ALGORITHMS
from dist_mp.experiments import horovod_allreduce
from dist_mp.experiments.allreduce_ranks import Ranks, Request, Sample, measure
from dist_mp.experiments.allreduce_report import make_rows, print_tables, write_json, write_plot
from dist_mp.experiments.rounds import JobFailedError, horovod_peer, run_round
from dist_mp.launch.mpirun import rank_and_size

SIZES = tuple(2**k for k in (10, 12, 14, 16, 18, 20, 22, 23, 24, 26))


@dataclass(frozen=True)
class Bench:
    """What to measure and where to put it; every field has the command line's default."""

    ranks: int = 2
    """Ranks to start (under mpirun: those that are there)."""
    sizes: tuple[int, ...] = SIZES
    codecs: tuple[str, ...] = ()
    """Names of codecs; none means all."""
    algorithms: tuple[str, ...] = ALGORITHMS
    rounds: int = 3
    seconds: float = 0.3
    """For each method and size in a round (s)."""
    ranks_per_node: int | None = None
    """Pretend nodes of so many ranks on one machine."""
    peers: Path | None = None
    """Folder with ``horovod/bin/python`` and ``horovod/bin/mpirun``."""
    hostfile: str | None = None
    out: Path | None = None
    """Folder for ``allreduce.json`` and ``allreduce.png``; none means table only."""

    def request(self) -> Request:
        """One round of it, checked.

        Raises:
            UserError: an unknown codec or algorithm, or a number that cannot be.
        """
        names = self.codecs or codec_names()
        for name in names:
            codec_by_name(name)
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise UserError(f"bench allreduce: unknown algorithm {name!r}: valid are {', '.join(ALGORITHMS)}")
        for what, value in (("ranks", self.ranks), ("rounds", self.rounds), ("seconds", self.seconds)):
            if value <= 0:
                raise UserError(f"bench allreduce: {what} must be positive, got {value}")
        if not self.sizes or min(self.sizes) < 1:
            raise UserError(f"bench allreduce: sizes must be positive, got {', '.join(map(str, self.sizes))}")
        return Request(self.sizes, tuple(names), self.algorithms, self.seconds, self.ranks_per_node)


def run_bench(bench: Bench) -> int:
    """Measure, print the tables and write the files; returns the exit status.

    Raises:
        UserError: settings that cannot be measured; the peers are not there.
    """
    inside = rank_and_size(os.environ)
    if inside is not None and inside[1] > 1:
        _run_on_ranks(bench)
        return 0
    request = bench.request()
    _prepare(bench)
    horovod = None if bench.peers is None else horovod_peer(bench.peers)
    console = Console(highlight=False)
    ranks, samples = None, []
    program = [sys.executable, "-m", "dist_mp.experiments.allreduce_ranks"]
    with tempfile.TemporaryDirectory(prefix="dist-mp-bench-") as name:
        job = partial(run_round, request=asdict(request), folder=Path(name), ranks=bench.ranks, hostfile=bench.hostfile)
        try:
            for number in range(bench.rounds):
                console.print(f"round {number + 1} of {bench.rounds}: dist_mp and MPI_Allreduce")
                ours = job(program)
                who = ours["ranks"]
                ranks = Ranks(who["size"], tuple(who["node_sizes"]), who["library"])
                samples += [Sample(**sample) for sample in ours["samples"]]
                if horovod is not None:
                    console.print(f"round {number + 1} of {bench.rounds}: Horovod")
                    mpirun, python = horovod
                    theirs = job([python, horovod_allreduce.__file__], mpirun=mpirun)
                    samples += [Sample(**sample) for sample in theirs["samples"]]
        except JobFailedError as error:
            return error.status
    assert ranks is not None
    _show(console, bench, samples, ranks)
    return 0


def _run_on_ranks(bench: Bench) -> None:
    world = World.open(bench.ranks_per_node)
    abort_on_exception(world)
    with world:
        try:
            request = bench.request()
            if bench.peers is not None:
                raise UserError("bench allreduce: --peers starts jobs of its own, so call it without mpirun")
            if world.rank == 0:
                _prepare(bench)
            samples = [sample for _ in range(bench.rounds) for sample in measure(world, request)]
            if world.rank == 0:
                ranks = Ranks(world.size, world.node_sizes, world.library)
                # mpirun gives its ranks a terminal of its own, which says nothing about where the output ends.
                console = Console(highlight=False, force_terminal=False)
                _show(console, replace(bench, ranks=world.size), samples, ranks)
        except UserError as error:
            fail(world, error)


def _prepare(bench: Bench) -> None:
    """Make sure, before minutes of measuring, that the result can be written."""
    if bench.out is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("bench allreduce: --out draws a plot, which needs matplotlib: pip install matplotlib")
    try:
        bench.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"bench allreduce: cannot make the folder {bench.out} ({error.strerror})") from error


def _show(console: Console, bench: Bench, samples: Sequence[Sample], ranks: Ranks) -> None:
    rows = make_rows(samples, ranks)
    print_tables(console, rows, ranks)
    if bench.out is not None:
        try:
            settings = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(bench).items()}
            write_json(bench.out / "allreduce.json", rows, ranks, settings)
            write_plot(bench.out / "allreduce.png", rows, ranks)
        except OSError as error:
            raise UserError(f"bench allreduce: cannot write into {bench.out} ({error.strerror})") from error
        console.print(f"written: {bench.out / 'allreduce.json'}, {bench.out / 'allreduce.png'}")
