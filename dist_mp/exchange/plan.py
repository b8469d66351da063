"""Which gradients travel together: flat buckets in a fixed order, the same on every rank."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dist_mp.comm.world import World
from dist_mp.errors import UserError

GRAIN = 16
"""Slots start at multiples of 16 FP32 numbers, 64 bytes: a slice of the mean is then used where it lies, uncopied."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """The place of one gradient in its bucket."""

    index: int
    """Number of the gradient in creation order."""
    path: str
    shape: Shape
    offset: int
    """First number in the bucket."""
    numel: int
    """Numbers of the gradient; those between its end and the next slot are 0."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are averaged by one call."""

    slots: tuple[Slot, ...]
    length: int
    """Numbers, padding between the slots included."""


def plan_buckets(
    paths: Sequence[str], shapes: Sequence[Shape], bucket_mib: float, block: int = 1
) -> tuple[Bucket, ...]:
    """Cut the gradients into buckets in reverse creation order, in which backward yields them.

    Args:
        paths: names of the gradients, in creation order.
        shapes: their shapes.
        bucket_mib: a bucket is closed before it exceeds this size, counted in FP32 (MiB); a larger gradient has a
            bucket to itself.
        block: numbers that share a scale in the codec; no block holds numbers of two gradients.
    """
    grain = math.lcm(block, GRAIN)
    limit = bucket_mib * 2**20 / 4
    buckets: list[Bucket] = []
    slots: list[Slot] = []
    length = 0
    for index in reversed(range(len(paths))):
        numel = math.prod(shapes[index])
        room = -(-numel // grain) * grain
        if slots and length + room > limit:
            buckets.append(Bucket(tuple(slots), length))
            slots, length = [], 0
        slots.append(Slot(index, paths[index], tuple(shapes[index]), length, numel))
        length += room
    if slots:
        buckets.append(Bucket(tuple(slots), length))
    return tuple(buckets)


def flat_bucket(numel: int, block: int = 1) -> Bucket:
    """A bucket of one flat array."""
    (bucket,) = plan_buckets(["flat"], [(numel,)], math.inf, block)
    return bucket


def fingerprint(paths: Sequence[str], shapes: Sequence[Shape], dtypes: Sequence[str]) -> tuple[str, ...]:
    """One line for each variable, in creation order: path, shape and dtype."""
    lines = zip(paths, shapes, dtypes, strict=True)
    return tuple(f"{path} {list(shape)} {dtype}" for path, shape, dtype in lines)


def check_fingerprint(world: World, lines: Sequence[str]) -> None:
    """Make sure that all ranks have the same variables. Collective.

    Raises:
        UserError: on every rank, with the first difference and the two ranks between which it is.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    digests = world.allgather(digest)
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if not different:
        return
    every = world.allgather(tuple(lines))
    rank = different[0]
    first, other = every[0], every[rank]
    at = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other)))
    ours, theirs = (lines[at] if at < len(lines) else "nothing" for lines in (first, other))
    raise UserError(
        f"the ranks' variables differ: variable {at} is {ours!r} on rank 0 and {theirs!r} on rank {rank}; "
        "all ranks must build the same model from the same configuration"
    )
