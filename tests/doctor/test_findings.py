"""Verdicts about facts of machines that are not here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dist_mp.doctor.facts import RankFacts
from dist_mp.doctor.findings import Finding, judge_links, judge_mpirun, judge_ranks, worst
from dist_mp.doctor.links import Link, pairs
from dist_mp.launch.mpirun import Mpirun

LIBRARY = {
    "vendor": "Open MPI",
    "version": "5.0.11",
    "standard": "3.1",
    "path": "/env/lib/libmpi.so.40",
    "mpi4py": "4.1.2",
    "built_for": "openmpi",
    "threads": "multiple",
}


def facts(rank: int, **changes: Any) -> RankFacts:
    """Rank `rank` of 4 on two good nodes."""
    good = RankFacts(
        rank=rank,
        size=4,
        local_rank=rank % 2,
        node=rank // 2,
        num_nodes=2,
        host=f"node{rank // 2}",
        slurm_node="",
        launcher="mpirun (Open MPI)",
        launcher_size=4,
        library=LIBRARY,
        versions={"dist_mp": "0.1.0", "Python": "3.11.7", "tensorflow": "2.21.0"},
        python="/env/bin/python",
        processor="Xeon",
        features=["avx2", "f16c", "avx512f", "amx-bf16"],
        machine_cores=8,
        cores=list(range(4 * (rank % 2), 4 * (rank % 2) + 4)),
        numa_nodes=1,
        threads={"OMP_NUM_THREADS": "1"},
        memory_bytes=64 << 30,
        shared_bytes=32 << 30,
        memlock_bytes=-1,
        gpus=[],
        interfaces=[{"name": "eth0", "mbit": 10_000, "mtu": 1500}],
        fabrics=["mlx5_0 port 1: active, 100 Gb/sec (4X EDR)"],
    )
    return replace(good, **changes)


def judged(*ranks: RankFacts) -> dict[str, Finding]:
    return {finding.topic: finding for finding in judge_ranks(ranks)}


def test_good_nodes_are_fine() -> None:
    found = judged(*map(facts, range(4)))
    assert {finding.verdict for finding in found.values()} == {"fine"}
    assert not any(finding.advice for finding in found.values()) and worst(found.values()) == 0
    assert found["launcher"].text == "mpirun (Open MPI): 4 ranks on node0 (2), node1 (2)"
    assert found["cores"].text.startswith("4 of 8 cores a rank, bound (0-3 for rank 0), 1 NUMA node; OMP_NUM_THREADS 1")
    assert found["processor"].text == "Xeon: avx2 f16c avx512f amx-bf16; precision auto is bf16"
    assert found["network"].text == "mlx5_0 port 1: active, 100 Gb/sec (4X EDR), eth0 10 Gbit/s"


@pytest.mark.parametrize(
    ("topic", "verdict", "changes", "said"),
    [
        ("versions", "problem", {"versions": {"tensorflow": "2.20.0"}}, "rank 3: tensorflow 2.20.0"),
        ("MPI library", "problem", {"library": LIBRARY | {"version": "4.1.0"}}, "rank 3: Open MPI 4.1.0"),
        ("cores", "note", {"cores": [0, 1, 2, 3]}, ""),
        ("processor", "note", {"features": ["avx2"]}, "rank 3: Xeon: avx2"),
        ("memory", "problem", {"shared_bytes": 64 << 20}, "/dev/shm 0.1 GiB free"),
        ("memory", "note", {"memlock_bytes": 64 << 10}, "64 KiB may be locked"),
        ("GPUs", "note", {"gpus": ["GPU 0: H200"]}, "rank 3: 1 x H200"),
        ("network", "note", {"fabrics": []}, "rank 3: eth0 10 Gbit/s"),
    ],
)
def test_one_rank_that_differs(topic: str, verdict: str, changes: dict[str, Any], said: str) -> None:
    finding = judged(*map(facts, range(3)), facts(3, **changes))[topic]
    if topic == "cores":  # both ranks of the node on the same 4 cores is still a core each
        assert finding.verdict == "fine"
        finding = judged(*map(facts, range(2)), facts(2, cores=[0]), facts(3, cores=[0]))[topic]
        said = "node1: 2 ranks on 1 cores"
    assert finding.verdict == verdict and said in finding.text and finding.advice


@pytest.mark.parametrize(
    ("topic", "verdict", "changes", "said"),
    [
        ("versions", "problem", {"versions": {"dist_mp": "0.1.0"}}, "dist_mp 0.1.0"),
        ("MPI library", "problem", {"library": LIBRARY | {"vendor": "MPICH"}}, "MPICH 5.0.11"),
        ("MPI threads", "note", {"library": LIBRARY | {"threads": "serialized"}}, "serialized"),
        ("MPI threads", "problem", {"library": LIBRARY | {"threads": "single"}}, "single"),
        ("launcher", "problem", {"launcher_size": 8}, "the launcher started 8"),
        ("launcher", "fine", {"launcher": "", "launcher_size": 0}, "none: one rank"),
        ("processor", "note", {"features": []}, "precision auto is fp32"),
        ("GPUs", "note", {"gpus": ["GPU 0: H200", "GPU 1: H200"], "node": 0}, "2 x H200, 4 ranks a node"),
        ("GPUs", "fine", {"gpus": ["GPU 0: H200", "GPU 1: H200"]}, "2 x H200"),
        ("network", "note", {"fabrics": ["mlx5_0 port 1: down, 40 Gb/sec"]}, "mlx5_0 port 1: down"),
        ("network", "note", {"fabrics": [], "interfaces": []}, "none but loopback"),
    ],
)
def test_all_ranks_alike(topic: str, verdict: str, changes: dict[str, Any], said: str) -> None:
    finding = judged(*(facts(rank, **changes) for rank in range(4)))[topic]
    assert (finding.verdict, bool(finding.advice)) == (verdict, verdict != "fine") and said in finding.text


def test_mpirun_and_library_of_one_mpi() -> None:
    ours = Mpirun("/env/bin/mpirun", "Open MPI", "5.0.11")
    assert judge_mpirun(ours, "Open MPI", "5.0.11").verdict == "fine"
    assert judge_mpirun(ours, "Open MPI", "4.1.6").verdict == "note"
    for library in ("MPICH", "Intel MPI"):
        other = judge_mpirun(ours, library, "4.3.0")
        assert other.verdict == "problem" and worst([other]) == 1
    assert judge_mpirun("no mpirun found", "", "").verdict == "problem"


def test_links_that_are_measured_and_the_slowest_named() -> None:
    assert pairs([0]) == []
    assert pairs([0, 0, 0]) == [(0, 1)]
    assert pairs([0, 1, 0, 1, 2]) == [(0, 2), (1, 3), (0, 1), (0, 4)]
    links = [
        Link(0, 2, "within a node", 0.5, 9.0),
        Link(0, 1, "between nodes", 2.0, 12.0),
        Link(0, 4, "between nodes", 30.0, 0.1),
    ]
    within, between = judge_links(links)
    assert (within.topic, within.text) == ("link within a node", "0.5 us, 9.00 GB/s")
    assert between.text == "30.0 us, 0.10 GB/s at worst of 2 pairs (ranks 0 and 4)"
