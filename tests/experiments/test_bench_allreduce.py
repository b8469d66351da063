"""dist-mp bench allreduce: what it measures, what it shows, and what it refuses. Speed is not asserted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dist_mp.codec.table import codec_names
from dist_mp.comm.native import library_sums_half, plain_mean
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.experiments.allreduce_ranks import COPY, MPI_FP32, Ranks, Request, Sample, pairs, parse_request
from dist_mp.experiments.allreduce_report import floor_bytes, make_rows, print_tables, write_json, write_plot
from dist_mp.experiments.bench_allreduce import Bench, run_bench
from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine
from tests.harness.runner import ROOT

RANKS = Ranks(2, (2,), "An MPI 1.0")
SAMPLES = [
    Sample(COPY, 65536, [1.0, 3.0, 2.0]),
    Sample(MPI_FP32, 65536, [8.0]),
    Sample("fp16 shared", 65536, [4.0, 2.0]),
    Sample("fp16 shared", 65536, [6.0]),
    Sample("Horovod fp16", 65536, [40.0, 44.0]),
    Sample("fp16 shared", 100, [0.5]),
]


def test_rounds_are_pooled_into_medians_ratios_and_floors() -> None:
    rows = {(row.method, row.numbers): row for row in make_rows(SAMPLES, RANKS)}
    ours = rows["fp16 shared", 65536]
    assert (ours.median, ours.best, ours.calls) == (4.0, 2.0, 3)
    assert ours.faster_than == {MPI_FP32: 2.0, "Horovod fp16": 10.5}
    assert ours.floor == pytest.approx(15 / 8 * 2.0)  # 15 bytes a number against 8 of a copy that takes 2 ms
    assert rows[MPI_FP32, 65536].faster_than == {"Horovod fp16": 5.25}
    assert rows[COPY, 65536].faster_than == {}
    assert rows["fp16 shared", 100].floor is None and rows["fp16 shared", 100].faster_than == {}
    across = make_rows(SAMPLES, Ranks(2, (1, 1), "An MPI 1.0"))
    assert all(row.floor is None for row in across)


def test_the_floor_counts_every_byte_once() -> None:
    # Two ranks, fp16: in 4 + 2 out, two halves of 2 in and 1 out, in 2 + 4 out.
    assert floor_bytes("fp16", 1000, 2) == 1000 * (4 + 2 + 2 + 1 + 2 + 4)
    # Four ranks, fp32: the sum reads four quarters and writes one.
    assert floor_bytes("fp32", 1000, 4) == 1000 * (4 + 4 + 4 + 1 + 4 + 4)
    assert floor_bytes("fp32", 1000, 1) == 1000 * (4 + 4 + 4 + 4)  # one rank encodes and decodes


def test_tables_json_and_plot(tmp_path: Path) -> None:
    rows = make_rows(SAMPLES, RANKS)
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    print_tables(console, rows, RANKS)
    console.file.close()
    text = console.export_text()
    assert "65,536 numbers" in text and "2^16" in text and "10.5" in text
    write_json(tmp_path / "a.json", rows, RANKS, {"rounds": 3})
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["ranks"] == {"size": 2, "node_sizes": [2], "library": "An MPI 1.0"}
    assert content["settings"] == {"rounds": 3}
    assert [row["median"] for row in content["rows"]] == [row.median for row in rows]
    write_plot(tmp_path / "a.png", rows, RANKS)
    write_plot(tmp_path / "a.svg", rows, RANKS)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_a_request_travels_as_json() -> None:
    from dataclasses import asdict

    request = Request((1, 5), ("fp16",), ("shared", "native"), 0.5, 2)
    assert parse_request(json.dumps(asdict(request))) == request


def test_native_goes_with_the_codecs_that_it_can_sum() -> None:
    request = Bench(algorithms=("pieces", "native")).request()
    assert set(request.codecs) >= {"fp32", "fp16", "bf16"}
    made = set(pairs(request))
    assert {c for c, a in made if a == "native"} == {"fp32", "fp16", "bf16"}
    assert {c for c, a in made if a == "pieces"} == set(request.codecs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codecs": ("fp17",)}, "unknown codec 'fp17'"),
        ({"algorithms": ("ring",)}, "unknown algorithm 'ring': valid are shared, pieces, native"),
        ({"rounds": 0}, "rounds must be positive, got 0"),
        ({"seconds": -1.0}, "seconds must be positive, got -1"),
        ({"sizes": (0, 4)}, "sizes must be positive, got 0, 4"),
        ({"peers": Path("nowhere")}, "nowhere/horovod/bin/python"),
        ({"out": Path(__file__) / "below"}, "cannot make the folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        run_bench(Bench(**changes))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_the_yardstick_is_the_mean() -> None:
    import numpy as np

    with World.open() as world:
        gradient = np.full(100, 2.0 * world.rank, np.float32)
        for dtype in (np.float32, np.float16) if library_sums_half(world) else (np.float32,):
            mean = plain_mean(world, dtype)(gradient)
            assert mean.dtype == np.float32
            np.testing.assert_array_equal(mean, world.size - 1.0)


@pytest.mark.mpi(ranks=[2, 4])
def test_under_mpirun_every_rank_measures_and_rank_0_shows() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench"
        bench = Bench(sizes=(1000,), codecs=("fp16",), rounds=2, seconds=0.001, ranks_per_node=2, out=out)
        assert run_bench(bench) == 0
        if int(os.environ["OMPI_COMM_WORLD_RANK"]) == 0:
            content = json.loads((out / "allreduce.json").read_text())
            size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
            assert content["ranks"]["node_sizes"] == [2] * (size // 2)
            assert {"fp16 shared", "fp16 pieces", "fp16 native"} <= {row["method"] for row in content["rows"]}
        else:
            assert not out.exists()


def launched(run_cli: Any, bench: str, **variables: str) -> Any:
    """The bench in a process of its own, as the command line runs it."""
    program = f"""
import sys
from pathlib import Path
from dist_mp.experiments.bench_allreduce import Bench, run_bench
sys.exit(run_bench(Bench({bench})))
"""
    return run_cli([], program=[sys.executable, "-c", program], timeout=120, env=variables)


def test_the_launcher_starts_the_rounds(tmp_path: Path, run_cli: Any) -> None:
    sizes = (64, 3000)
    done = launched(
        run_cli, f"sizes={sizes}, codecs=('fp32', 'fp16'), rounds=2, seconds=0.001, out=Path({str(tmp_path / 'new')!r})"
    )
    assert done.rc == 0, done.stderr
    assert "round 2 of 2" in done.stdout and "fp16 shared" in done.stdout
    content = json.loads((tmp_path / "new" / "allreduce.json").read_text())
    measured = {(row["method"], row["numbers"]) for row in content["rows"]}
    methods = {f"{c} {a}" for c in ("fp32", "fp16") for a in ("shared", "pieces", "native")}
    assert measured >= {(method, size) for method in methods | {MPI_FP32, COPY} for size in sizes}
    assert all(row["calls"] >= 6 and row["best"] > 0 for row in content["rows"])
    assert (tmp_path / "new" / "allreduce.png").stat().st_size > 1000


@pytest.mark.skipif("DIST_MP_PEERS" not in os.environ, reason="DIST_MP_PEERS names no folder with Horovod")
def test_horovod_takes_its_turn(tmp_path: Path, run_cli: Any) -> None:
    peers, out = os.environ["DIST_MP_PEERS"], str(tmp_path)
    done = launched(
        run_cli,
        f"sizes=(64,), codecs=('fp16',), rounds=1, seconds=0.001, peers=Path({peers!r}), out=Path({out!r})",
    )
    assert done.rc == 0, done.stderr
    rows = json.loads((tmp_path / "allreduce.json").read_text())["rows"]
    (ours,) = (row for row in rows if row["method"] == "fp16 shared")
    assert set(ours["faster_than"]) >= {"Horovod", "Horovod fp16", MPI_FP32}


def test_a_failing_round_ends_the_bench_with_its_status(tmp_path: Path, run_cli: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nif 'OMPI_COMM_WORLD_RANK' in os.environ: os._exit(3)\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = launched(run_cli, "sizes=(64,), codecs=('fp16',), rounds=1, seconds=0.001", PYTHONPATH=path)
    assert done.rc == 3, done.stderr
    assert "floor" not in done.stdout


def test_a_mistake_under_mpirun_is_one_line(run_cli: Any) -> None:
    bench = "from dist_mp.experiments.bench_allreduce import Bench, run_bench; run_bench(Bench(codecs=('fp17',)))"
    command = job_command(find_mpirun(), 2, [sys.executable, "-c", bench], machine=this_machine())
    done = run_cli([], program=command.argv, env=command.environment, timeout=60)
    assert done.rc == 2
    assert [line for line in done.stderr.splitlines() if "fp17" in line] == [
        f"error: unknown codec 'fp17': valid are {', '.join(codec_names())}"
    ]
