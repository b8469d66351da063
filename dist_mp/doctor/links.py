"""Latency and bandwidth between pairs of ranks, within a node and between nodes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from dist_mp.comm.world import World

SMALL_BYTES, LARGE_BYTES = 8, 8 << 20
ROUNDS = 9
MOST_PAIRS = 32


@dataclass(frozen=True)
class Link:
    """What was measured between two ranks while all others were silent."""

    first: int
    second: int
    kind: str
    """``within a node`` or ``between nodes``."""
    latency_us: float
    """Half of the way there and back of 8 bytes, median (microseconds)."""
    gb_per_s: float
    """8 MiB one way, from the median of there and back (10^9 bytes a second)."""


def pairs(nodes: list[int]) -> list[tuple[int, int]]:
    """The pairs that are measured, from each rank's node.

    On each node its first two ranks; between nodes the first rank of the first node and the first of each other one.
    """
    first: dict[int, int] = {}
    within = []
    for rank, node in enumerate(nodes):
        if node not in first:
            first[node] = rank
        elif nodes.index(node, first[node] + 1) == rank:
            within.append((first[node], rank))
    leaders = [first[node] for node in sorted(first)]
    return [*within[:MOST_PAIRS], *((leaders[0], other) for other in leaders[1 : 1 + MOST_PAIRS])]


def measure_links(world: World) -> list[Link]:
    """Measure all pairs one after the other, the same list on every rank. Collective."""
    nodes = world.allgather(world.node)
    links = []
    for pair in pairs(nodes):
        world.barrier()
        mine = _ping_pong(world, pair) if world.rank in pair else (0.0, 0.0)
        latency, rate = world.broadcast(mine, root=pair[0])
        kind = "within a node" if nodes[pair[0]] == nodes[pair[1]] else "between nodes"
        links.append(Link(*pair, kind, latency * 1e6, rate / 1e9))
    return links


def _ping_pong(world: World, pair: tuple[int, int]) -> tuple[float, float]:
    """Seconds of a small message one way, and bytes a second of a large one."""
    other = pair[1] if world.rank == pair[0] else pair[0]
    small = _median_seconds(world, other, np.zeros(SMALL_BYTES, np.uint8), world.rank == pair[0], 200)
    large = _median_seconds(world, other, np.zeros(LARGE_BYTES, np.uint8), world.rank == pair[0], 3)
    return small, LARGE_BYTES / large


def _median_seconds(world: World, other: int, buffer: np.ndarray, begins: bool, times: int) -> float:
    """Median over rounds of the time one way; the first round warms up and is left out."""
    rounds = []
    with world.watchdog("the measurement of a link"):
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for _ in range(times):
                if begins:
                    world.comm.Send(buffer, other)
                    world.comm.Recv(buffer, other)
                else:
                    world.comm.Recv(buffer, other)
                    world.comm.Send(buffer, other)
            rounds.append((time.perf_counter() - begin) / (2 * times))
    return statistics.median(rounds[1:])
