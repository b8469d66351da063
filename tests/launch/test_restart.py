"""Starting again after a failure: how often, on which hosts, with how many ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_mp.launch.job import JobEnd
from dist_mp.launch.mpirun import JobCommand, find_mpirun
from dist_mp.launch.restart import Host, answers, fewer, job_hosts, read_hosts, run_with_restarts


def test_hostfiles_of_both_kinds() -> None:
    text = "# nodes\nnode1 slots=4 max_slots=8\nnode2:2\n\nnode3  # no number\n"
    assert read_hosts(text) == [Host("node1", 4), Host("node2", 2), Host("node3")]


def test_hosts_of_a_job(tmp_path: Path) -> None:
    assert job_hosts(None, {}) == []
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\n")
    assert job_hosts(None, {"PBS_NODEFILE": str(nodes)}) == [Host("a", 2), Host("b", 1)]
    (tmp_path / "hosts").write_text("c slots=3\n")
    assert job_hosts(str(tmp_path / "hosts"), {"PBS_NODEFILE": str(nodes)}) == [Host("c", 3)]


@pytest.mark.parametrize(
    ("hosts", "left", "ranks", "expected"),
    [
        ([Host("a", 4), Host("b", 2)], [Host("b", 2)], 6, 2),
        ([Host("a", 4), Host("b", 4)], [Host("b", 4)], 3, 3),
        ([Host("a"), Host("b"), Host("c")], [Host("a"), Host("c")], 12, 8),
        ([Host("a"), Host("b")], [Host("a")], 1, 1),
    ],
)
def test_ranks_on_the_hosts_that_are_left(hosts: list[Host], left: list[Host], ranks: int, expected: int) -> None:
    assert fewer(hosts, left, ranks) == expected


class Jobs:
    """Jobs that end as given, and what they were started with."""

    def __init__(self, *ends: JobEnd) -> None:
        self._ends: Iterator[JobEnd] = iter(ends)
        self.started: list[tuple[int, str]] = []

    def command(self, ranks: int, hostfile: str | None) -> JobCommand:
        self.started.append((ranks, Path(hostfile).read_text() if hostfile else ""))
        return JobCommand(["job"], {}, ["a note"])

    def run(self, command: JobCommand) -> JobEnd:
        return next(self._ends)


def test_it_starts_again_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs(JobEnd(137, False), JobEnd(1, False), JobEnd(0, False))
    assert run_with_restarts(5, 2, [], jobs.command, lambda host: True, jobs.run) == 0
    assert jobs.started == [(2, "")] * 3
    assert capsys.readouterr().err.splitlines() == [
        "dist-mp: a note",
        "dist-mp: starting 2 ranks again (up to 5 times more)",
        "dist-mp: starting 2 ranks again (up to 4 times more)",
    ]


def test_not_more_often_than_asked() -> None:
    jobs = Jobs(*[JobEnd(137, False)] * 3)
    assert run_with_restarts(2, 2, [], jobs.command, lambda host: True, jobs.run) == 137
    assert len(jobs.started) == 3


@pytest.mark.parametrize("end", [JobEnd(2, False), JobEnd(75, True), JobEnd(143, True), JobEnd(0, False)])
def test_not_after_a_mistake_or_a_request(end: JobEnd) -> None:
    jobs = Jobs(end)
    assert run_with_restarts(3, 2, [], jobs.command, lambda host: True, jobs.run) == end.status
    assert len(jobs.started) == 1


def test_dead_hosts_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [Host("a", 2), Host("b", 2), Host("c", 1)]
    dead: set[str] = set()
    jobs = Jobs(JobEnd(1, False), JobEnd(1, False), JobEnd(1, False))

    def alive(host: Host) -> bool:
        return host.name not in dead

    def run(command: JobCommand) -> JobEnd:
        dead.add("abc"[len(dead)])
        return jobs.run(command)

    assert run_with_restarts(9, 5, hosts, jobs.command, alive, run) == 1
    assert jobs.started == [(5, ""), (3, "b slots=2\nc slots=1\n"), (1, "c slots=1\n")]
    said = capsys.readouterr().err.splitlines()
    assert said[1] == "dist-mp: starting 3 ranks again without a (up to 9 times more)"
    assert said[-1] == "dist-mp: no host answers any more: c"


def test_hosts_are_asked_by_mpirun() -> None:
    mpirun = find_mpirun()
    quiet = {"OMPI_MCA_osc": "^ucx"}
    assert answers(mpirun, Host("localhost"), quiet)
    assert not answers(mpirun, Host("no-such-host.invalid"), quiet)
