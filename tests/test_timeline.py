"""The timeline is valid JSON at every moment, and says when what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dist_mp.timeline import EVENTS, LANES, Timeline


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a trace file, names of rows left out."""
    trace = json.loads(path.read_text())
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_events_come_with_their_times_in_microseconds(tmp_path: Path) -> None:
    zero = float(int(time.perf_counter()) + 100)
    with Timeline(tmp_path / "new" / "timeline", 3, zero=zero) as timeline:
        for number, event in enumerate(EVENTS):
            timeline.add(event, zero + 0.5 + number, zero + 0.75 + number)
        assert events(timeline.path) != []  # they lie a second and more apart, so they are not kept back
    assert timeline.path.name == "rank-0003.json"
    got = events(timeline.path)
    assert [event["name"] for event in got] == list(EVENTS)
    assert [event["ts"] for event in got] == [500000.0 + 1e6 * number for number in range(len(EVENTS))]
    assert {event["dur"] for event in got} == {250000.0} and {event["pid"] for event in got} == {3}
    assert [event["tid"] for event in got] == [1, 1, 2, 2, 2, 2, 2, 1]
    names = [e for e in json.loads(timeline.path.read_text())["traceEvents"] if e["ph"] == "M"]
    assert [(e["name"], e["tid"], e["args"]["name"]) for e in names] == [
        ("process_name", 0, "rank 3"),
        *(("thread_name", number, lane) for lane, (number, _) in LANES.items()),
    ]
    timeline.add("update", zero + 200.0, zero + 201.0)
    timeline.close()
    assert len(events(timeline.path)) == len(EVENTS)


def test_every_event_has_a_row() -> None:
    assert sorted(event for _, lane in LANES.values() for event in lane) == sorted(EVENTS)


def test_a_file_without_events_is_valid(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, 0)
    assert events(timeline.path) == []
    timeline.close()
    assert events(timeline.path) == []


def test_a_span_is_the_time_of_its_block_also_when_it_raises(tmp_path: Path) -> None:
    with Timeline(tmp_path, 0) as timeline:
        with timeline.span("forward"):
            time.sleep(0.02)
        with pytest.raises(ZeroDivisionError), timeline.span("backward"):
            1 / 0  # noqa: B018
        timeline.flush()
        forward, backward = events(timeline.path)
    assert forward["dur"] >= 20000 and backward["ts"] >= forward["ts"] + forward["dur"]


def test_threads_may_write_together(tmp_path: Path) -> None:
    with Timeline(tmp_path, 0, flush_seconds=0.0) as timeline:

        def work(event: Any) -> None:
            for number in range(200):
                timeline.add(event, number, number + 1e9)

        threads = [threading.Thread(target=work, args=(event,)) for event in ("forward", "move")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(events(timeline.path)) == 400


ENDLESS = """
import signal, sys, time
from pathlib import Path
from dist_mp.timeline import Timeline
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes jobs in the background ignore it
timeline = Timeline(Path(sys.argv[1]), 0, flush_seconds=0.0)
number = 0
while True:
    timeline.add("move", number, number + 1.0e9)
    number += 1
    if number == 100:
        print("running", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_ended_by_a_signal_leaves_valid_json(tmp_path: Path, number: int) -> None:
    for turn in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            time.sleep(0.01 * turn)
            os.kill(process.pid, number)
            try:
                assert process.wait(10) != 0
            finally:
                process.kill()
        got = events(tmp_path / "rank-0000.json")
        assert len(got) >= 100
        assert [event["ts"] for event in got] == sorted(event["ts"] for event in got)
