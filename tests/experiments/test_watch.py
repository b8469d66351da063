"""Runs on a terminal and as lines for scripts."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dist_mp.experiments.run_reader import read_run
from dist_mp.experiments.run_state import snapshot
from dist_mp.experiments.watch import SHOWN_RANKS, plain_lines, screen, sparkline, watch
from tests.experiments import made_runs as made


def values(lines: list[str]) -> dict[str, str]:
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in lines)  # type: ignore[misc]


def shown(*folders: Path, columns: int = 150) -> str:
    console = Console(file=io.StringIO(), width=columns, height=200, force_terminal=True, color_system=None)
    datas = [read_run(folder) for folder in folders]
    console.print(screen([(data, snapshot(data, made.BEGIN + 20)) for data in datas]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_plain_lines(tmp_path: Path) -> None:
    records = [made.start(hosts=["elsewhere", "node02"]), *(made.step(n) for n in range(30)), made.epoch(0, 25)]
    data = read_run(made.write(tmp_path / "my-run", [*records, made.ranks(30, [0.07, 0.1])]))
    found = values(plain_lines(snapshot(data, made.step(29).time + 1)))
    assert (found["run"], found["state"], found["step"], found["expected_steps"]) == ("my-run", "running", "30", "100")
    assert float(found["loss"]) == pytest.approx(np.mean([made.step(n).loss for n in range(10, 30)]), rel=1e-5)
    assert float(found["remaining_seconds"]) == pytest.approx(7.0)
    assert float(found["share_exchange"]) == 0.15 and float(found["held_out_auc"]) == pytest.approx(0.9, abs=0.1)
    assert found["rank_1"].startswith("host node02 compute 76.9% exchange 11.5% wait 7.7% input 3.8% excess")
    assert found["stragglers"] == "1"


def test_plain_lines_before_the_first_record(tmp_path: Path) -> None:
    found = values(plain_lines(snapshot(read_run(made.write(tmp_path / "run", [])))))
    assert found["state"] == "not begun" and found["loss"] == "-" and found["stragglers"] == "-"
    assert {"step", "expected_steps", "share_wait", "learning_rate"} <= set(found)


def test_once_prints_all_runs_and_nothing_else(tmp_path: Path) -> None:
    folders = [made.complete(tmp_path / name, steps=20) for name in ("a", "b")]
    console = Console(file=io.StringIO(), width=40)
    watch(folders, console, once=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    first, second = text.strip().split("\n\n")
    assert values(first.splitlines())["run"] == "a" and values(second.splitlines())["run"] == "b"
    assert "\x1b" not in text


def test_screen_shows_runs_side_by_side(tmp_path: Path) -> None:
    folders = [made.complete(tmp_path / name, steps=40) for name in ("first", "second")]
    text = shown(*folders)
    top = text.splitlines()[0]
    assert "first" in top and "second" in top
    narrow = shown(*folders, columns=80)
    assert "first" in narrow.splitlines()[0] and "second" not in narrow.splitlines()[0]
    for word in ("learning rate", "loss scale", "gradient norm", "samples/s", "held-out auc", "1 skipped", "straggler"):
        assert word in text


def test_screen_names_the_slowest_of_many_ranks(tmp_path: Path) -> None:
    compute = [0.1] * 50
    compute[33] = 0.2
    hosts = [f"n{rank}" for rank in range(50)]
    folder = made.write(tmp_path / "run", [made.start(ranks=50, hosts=hosts), made.step(0), made.ranks(1, compute)])
    text = shown(folder)
    assert re.search(r"33 n33 .*straggler", text)
    assert f"and {50 - SHOWN_RANKS} ranks that are faster" in text


def test_hostile_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    evil = "[red]x[/red]\x1b[2J\x07\n"
    records = [made.start(hosts=[evil, evil]), made.step(0), made.epoch(0, 1, **{evil: 3.0}), made.ranks(1, [1, 2])]
    folder = made.write(tmp_path / "[bold]run", records)
    text = shown(folder) + "\n".join(plain_lines(snapshot(read_run(folder))))
    assert "\x1b[2J" not in text and "\x07" not in text
    assert "[bold]run" in text and "[red]x[/red]" in text
    assert all(re.match(r"\S+ {2,}\S", line) for line in plain_lines(snapshot(read_run(folder))))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_screen_of_a_run_that_has_hardly_begun(steps: int, tmp_path: Path) -> None:
    nothing = math.nan
    records = [made.start(), *(made.step(n, loss=nothing, gradient_norm=math.inf) for n in range(steps))]
    text = shown(made.write(tmp_path / "run", records))
    assert f"step {steps} of 100" in text


def test_sparkline() -> None:
    assert sparkline(np.arange(8.0)) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.array([0.0, math.nan, 1.0])) == "▁x█"
    assert sparkline(np.array([2.0, 2.0])) == "▁▁"
    assert sparkline(np.array([math.nan])) == "" == sparkline(np.zeros(0))
    assert len(sparkline(np.arange(1000.0), 28)) == 28


def test_live_on_a_terminal_until_the_run_ends(tmp_path: Path) -> None:
    """A real terminal: the display follows the file and the command ends with the run."""
    folder = made.write(tmp_path / "run", [made.start(hosts=["elsewhere"]), made.step(0)])
    master, slave = pty.openpty()
    environment = os.environ | {
        "TERM": "xterm",
        "COLUMNS": "100",
        "LINES": "40",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "dist_mp", "watch", str(folder), "--interval", "0.1"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=tmp_path) as process:
        os.close(slave)
        text, written, end = "", 0, time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([master], [], [], 0.2)[0]:
                try:
                    text += os.read(master, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    break
            if written == 0 and "step 1 of 100" in text:
                made.write(folder, [made.step(n) for n in range(1, 42)])
                written = 1
            elif written == 1 and "step 42 of 100" in text:
                made.write(folder, [made.summary(42)])
                written = 2
        if written < 2:
            process.kill()
        assert process.wait(10) == 0, text
    os.close(master)
    assert written == 2 and "ended after" in text and "Traceback" not in text
