"""What an exchange must give, computed by the codecs' NumPy references from all ranks' numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.base import Codec, Wire
from dist_mp.codec.reference import reference_codecs, weighted_sum
from dist_mp.codec.rounding import rounding_seed


def rank_values(rank: int, length: int) -> NDArray[np.float32]:
    """Numbers of all sizes, other ones on every rank; some are too large or too small for fp16."""
    rng = np.random.default_rng([rank, length])
    return (rng.standard_normal(length) * 10.0 ** rng.integers(-9, 6, length)).astype(np.float32)


def encoded(codec: Codec, values: NDArray[np.float32]) -> Wire:
    """The wire of `values`."""
    wire = np.empty(codec.wire_bytes(len(values)), np.uint8)
    codec.encode(values, wire)
    return wire


def mean_over_ranks(
    name: str, values: list[NDArray[np.float32]], node_sizes: list[int], words: tuple[int, ...] | None = None
) -> NDArray[np.float32]:
    """The two-level mean: on each node, then over the nodes, each sum in FP32 and in order, each mean on the wire.

    With `words` (seed, step, bucket) all is rounded at random: on rank r by (2, r), in the mean of node k by (1, k) if
    there are others, and in the mean over all by (0, 0).
    """
    codec, length = reference_codecs()[name], len(values[0])

    def rounds(level: int, who: int) -> Codec:
        return codec if words is None else codec.seeded(rounding_seed(*words, level, who))

    wires = [encoded(rounds(2, rank), v) for rank, v in enumerate(values)]
    nodes, first = [], 0
    for node, size in enumerate(node_sizes):
        members = wires[first : first + size]
        here = rounds(1, node) if len(node_sizes) > 1 else rounds(0, 0)
        nodes.append(encoded(here, weighted_sum(codec, members, [1 / size] * size, length)) if size > 1 else members[0])
        first += size
    if len(nodes) > 1:
        weights = [size / len(values) for size in node_sizes]
        nodes = [encoded(rounds(0, 0), weighted_sum(codec, nodes, weights, length))]
    out = np.empty(length, np.float32)
    codec.decode(nodes[0], out)
    return out
