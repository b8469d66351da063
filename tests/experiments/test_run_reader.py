"""Records are read as they are written; the later record of a step holds; damage costs no more than its line."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dist_mp.errors import UserError
from dist_mp.experiments.run_reader import RunReader, chosen_runs, newest_run, read_run
from dist_mp.experiments.run_state import duration, snapshot
from dist_mp.train.records import RecordWriter, StopRecord
from tests.experiments import made_runs as made


def test_a_complete_run(tmp_path: Path) -> None:
    data = read_run(made.complete(tmp_path / "run", steps=100))
    assert len(data) == 100 and data.checks == 1 and data.bad_lines == 0 and data.repeated_steps == 0
    assert data.column("step").tolist() == list(range(100))
    assert math.isnan(data.column("gradient_norm")[50]) and np.isfinite(data.column("loss")).all()
    assert {number: epoch["at_step"] for number, epoch in data.epochs.items()} == {0: 50, 1: 100}
    shot = snapshot(data)
    assert (shot.state, shot.step, shot.skipped, shot.ranks) == ("ended", 100, 1, 2)
    assert shot.loss == pytest.approx(np.mean(data.column("loss")[-20:]))


def test_a_run_that_is_being_written(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [])
    reader = RunReader(folder)
    assert not reader.poll()
    assert snapshot(reader.data).state == "not begun"
    lines = "".join(record.model_dump_json() + "\n" for record in [made.start(), *map(made.step, range(3))])
    seen = []
    for begin in range(0, len(lines), 97):  # cut anywhere, also within a line
        made.append_text(folder, lines[begin : begin + 97])
        reader.poll()
        seen.append(len(reader.data))
    assert seen == sorted(seen) and seen[-1] == 3 and reader.data.bad_lines == 0
    assert not reader.poll()


def test_without_a_file_yet(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [])
    (folder / "metrics.jsonl").unlink()
    reader = RunReader(folder)
    assert not reader.poll() and snapshot(reader.data).state == "not begun"
    made.write(folder, [made.start(), made.step(0)])
    assert reader.poll() and len(reader.data) == 1


def test_the_later_record_of_a_step_holds(tmp_path: Path) -> None:
    before = [made.start(), *map(made.step, range(10)), made.epoch(0, 5), made.epoch(1, 10)]
    folder = made.write(tmp_path / "run", before)
    reader = RunReader(folder)
    reader.poll()
    # It goes on from the checkpoint after step 6, an hour later, on 3 ranks.
    hour = 3600.0
    again = [made.start(step=6, ranks=3, time=made.BEGIN + hour, hosts=["a", "b", "c"])]
    made.write(folder, [*again, *(made.step(n, loss=7.0, time=made.BEGIN + hour + n) for n in range(6, 9))])
    reader.poll()
    for data in (reader.data, read_run(folder)):
        assert data.column("step").tolist() == list(range(9))
        assert data.column("loss")[6:].tolist() == [7.0] * 3 and data.column("loss")[5] == made.step(5).loss
        assert data.repeated_steps == 4 and len(data.starts) == 2
        assert snapshot(data).restarts == 1 and snapshot(data).ranks == 3


def test_steps_that_repeat_without_a_start_record(tmp_path: Path) -> None:
    records = [*map(made.step, range(5)), *(made.step(n, loss=7.0) for n in (2, 3))]
    data = read_run(made.write(tmp_path / "run", records))
    assert data.column("step").tolist() == [0, 1, 2, 3] and data.column("loss")[2:].tolist() == [7.0, 7.0]


def test_an_epoch_that_is_done_again_is_forgotten(tmp_path: Path) -> None:
    steps = [made.step(n) for n in range(10)]
    records = [made.start(), *steps[:5], made.epoch(0, 5), *steps[5:], made.epoch(1, 10), made.start(step=5)]
    assert list(read_run(made.write(tmp_path / "run", records)).epochs) == [0]


def test_a_crash_within_a_line_costs_that_line_only(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [made.start(), made.step(0)])
    made.append_text(folder, made.step(1).model_dump_json()[:50])
    with RecordWriter(folder / "metrics.jsonl") as writer:  # the run goes on
        writer.write(made.start(step=1))
        writer.write(made.step(1, loss=5.0))
    data = read_run(folder)
    assert data.bad_lines == 1 and len(data.starts) == 2
    assert data.column("loss").tolist() == [made.step(0).loss, 5.0]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "[]", "3", '"kind"', "{}", '{"kind": "step"}', '{"kind": "step", "step": "x"}', "[" * 100_000,
        '{"kind": "step", "step": null}', '{"kind": "ranks", "step": 1, "steps": 1}', '{"kind": "start"}', "\x00\x01",
        '{"kind": "ranks", "step": 1, "steps": 1, "compute": [1], "exchange": [1, 2], "wait": [], "input": []}',
        '{"kind": "epoch", "epoch": 1, "metrics": []}', '{"kind": "step", "step": 1e999}', '{"kind": "__class__"}',
    ],
)  # fmt: skip
def test_hostile_lines(line: str, tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [made.start(), made.step(0)])
    made.append_text(folder, line + "\n")
    made.write(folder, [made.step(1)])
    data = read_run(folder)
    assert data.bad_lines == (0 if "__class__" in line else 1)  # an unknown kind is passed over
    assert data.column("step").tolist() == [0, 1]
    assert {len(column) for column in data.columns.values()} == {2}
    snapshot(data)


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [])
    made.append_text(folder, json.dumps({"kind": "step", "step": 0, "loss": "<b>", "seconds": None}) + "\n")
    data = read_run(folder)
    assert len(data) == 1 and math.isnan(data.column("loss")[0]) and math.isnan(data.column("time")[0])
    assert snapshot(data).state == "silent"


def test_another_file_in_its_place(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [made.start(), *map(made.step, range(5))])
    reader = RunReader(folder)
    reader.poll()
    (folder / "metrics.jsonl").unlink()
    made.write(folder, [made.start(time=made.BEGIN + 9), *(made.step(n, loss=9.0) for n in range(7))])
    reader.poll()
    assert reader.data.column("loss").tolist() == [9.0] * 7 and len(reader.data.starts) == 1
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    os.truncate(folder / "metrics.jsonl", sum(map(len, lines[:4])))  # its beginning is as it was
    reader.poll()
    assert len(reader.data) == 3
    os.truncate(folder / "metrics.jsonl", 0)
    made.write(folder, [made.start()])
    reader.poll()
    assert len(reader.data) == 0 and len(reader.data.starts) == 1


def test_rank_times_are_means_by_steps(tmp_path: Path) -> None:
    records = [made.start(), made.ranks(10, [1.0, 2.0], steps=10), made.ranks(40, [4.0, 2.0], steps=30)]
    data = read_run(made.write(tmp_path / "run", records))
    assert data.rank_steps == 40
    np.testing.assert_allclose(data.rank_seconds[0] / data.rank_steps, [(10 + 120) / 40, 2.0])
    np.testing.assert_allclose(data.last_ranks[0], [4.0, 2.0])


def test_states_of_a_run_that_goes(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", [made.start(hosts=["elsewhere", "node02"])])
    reader = RunReader(folder)
    reader.poll()
    assert snapshot(reader.data, made.BEGIN + 5).state == "starting"
    made.write(folder, [made.step(n) for n in range(20)])
    reader.poll()
    last = made.step(19).time
    shot = snapshot(reader.data, last + 1)
    assert shot.state == "running" and shot.lives
    assert shot.remaining_seconds == pytest.approx(80 * 0.1)
    silent = snapshot(reader.data, last + 61)
    assert silent.state == "silent" and "no record for 1 min 1 s" in silent.explanation and silent.lives
    assert silent.remaining_seconds is None
    made.write(folder, [StopRecord(signal="SIGTERM")])
    reader.poll()
    stopped = snapshot(reader.data, last + 61)
    assert stopped.state == "stopped" and "SIGTERM" in stopped.explanation and not stopped.lives
    made.write(folder, [made.start(step=20, time=last + 100, hosts=["elsewhere"])])
    reader.poll()
    assert snapshot(reader.data, last + 101).state == "starting"


def test_long_steps_are_not_silence(tmp_path: Path) -> None:
    records = [made.start(hosts=["elsewhere"]), *(made.step(n, seconds=30.0) for n in range(3))]
    data = read_run(made.write(tmp_path / "run", records))
    assert snapshot(data, made.step(2).time + 500).state == "running"


def test_a_run_whose_process_is_gone_has_died(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        here = made.start(hosts=[platform.node()], process=process.pid, time=2e9)
        data = read_run(made.write(tmp_path / "run", [here, made.step(0, time=2e9 + 1)]))
        assert snapshot(data, 2e9 + 2).state == "running"
        process.communicate(b"\n")
    shot = snapshot(data, 2e9 + 2)
    assert shot.state == "died" and "its process is gone" in shot.explanation and not shot.lives
    # A process with this number that is younger than the run is another one.
    younger = made.start(hosts=[platform.node()], process=os.getpid(), time=1e9)
    data = read_run(made.write(tmp_path / "other", [younger, made.step(0, time=1e9 + 1)]))
    assert snapshot(data, 1e9 + 2).state == "died"


def test_stragglers(tmp_path: Path) -> None:
    records = [made.start(ranks=4), made.step(0), made.ranks(1, [0.1, 0.1, 0.14, 0.1])]
    shot = snapshot(read_run(made.write(tmp_path / "run", records)))
    assert [rank.rank for rank in shot.stragglers] == [2]
    assert shot.stragglers[0].excess == pytest.approx(0.145 / 0.105 - 1)
    assert sum(shot.rank_times[0].shares().values()) == pytest.approx(1)
    even = [made.start(ranks=4), made.step(0), made.ranks(1, [0.1, 0.1, 0.11, 0.1])]
    assert not snapshot(read_run(made.write(tmp_path / "even", even))).stragglers


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        read_run(tmp_path / "missing")
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"neither config\.yaml nor metrics\.jsonl$"):
        read_run(tmp_path / "runs")
    with pytest.raises(UserError, match="no run in"):
        chosen_runs([], tmp_path / "runs")
    for number, name in enumerate(["b", "a"]):
        made.write(tmp_path / "runs" / name, [])
        os.utime(tmp_path / "runs" / name, (number, number))
    assert newest_run(tmp_path / "runs") == tmp_path / "runs" / "a"
    with pytest.raises(UserError, match=r"the newest run in it is .*runs/a$"):
        read_run(tmp_path / "runs")
    assert chosen_runs([], tmp_path / "runs") == [tmp_path / "runs" / "a"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (8.54, "8.5 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (300_000, "3 d 11 h"),
     (math.nan, "unknown time")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
