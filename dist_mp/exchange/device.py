"""The mean of gradients that lie on GPUs: encoded, summed and decoded there, with the bits of the host's algorithms.

Every rank encodes its gradients on its GPU. Piece r of the bytes goes to rank r, which sums the ranks' pieces in FP32
in rank order, and the encoded mean goes to all. With algorithm `shared` this happens on two levels, as on the host:
the ranks of a node first, then equal local ranks across the nodes, for which each node's mean of a piece travels. GPUs
share no memory here; within a node MPI moves the bytes. Kernels and copies are queued on one stream. The host waits
for it once before each transfer, and once more at the end, since whoever uses the mean may do so on another stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_mp.codec.cuda_device import CudaDevice
from dist_mp.comm.world import World
from dist_mp.exchange.device_levels import Common, DeviceCodec, Level, device_bytes
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec
from dist_mp.exchange.stats import Stopwatch


@dataclass(frozen=True)
class _Slot:
    """Where a gradient is encoded."""

    start: int
    wire: Any
    """None if the gradient has no numbers."""
    gap: Any
    """Bytes up to the next slot, which are 0; None if there are none."""


@dataclass(frozen=True)
class _Plan:
    """The memory of a bucket."""

    slots: list[_Slot]
    mean: Any
    """Wire bytes of the whole mean."""


class DeviceMean:
    """Means of buckets over all ranks, from and to device memory."""

    def __init__(
        self,
        world: World,
        seeded: SeededCodec,
        longest: int,
        watch: Stopwatch,
        device: CudaDevice,
        *,
        two_levels: bool,
        direct: bool,
        max_bytes: int,
        gather_below: int,
    ) -> None:
        """Allocate for buckets of up to `longest` numbers. Collective.

        Args:
            world: the ranks.
            seeded: codec, on the CPU, of which the kernels give the same bits.
            longest: numbers of the longest bucket.
            watch: counts time and bytes.
            device: this rank's GPU.
            two_levels: as algorithm `shared`, nodes first; otherwise as `pieces`.
            direct: hand device memory to MPI instead of staging it.
            max_bytes: longest transfer of one call.
            gather_below: wire bytes up to which a bucket is gathered whole.
        """
        self._device, self._watch = device, watch
        self._codec = DeviceCodec(seeded, device)
        nbytes = seeded.codec.wire_bytes(longest)
        self._wire, self._mean = (device.empty(nbytes, np.uint8) for _ in range(2))
        self._alone = two_levels and world.size == 1
        common = Common(self._codec, device, watch, direct, max_bytes, gather_below)
        local, sizes, pieces = world.local_size, world.node_sizes, min(world.node_sizes)
        if two_levels and world.num_nodes > 1 and max(sizes) > 1:

            def across(longest: int, source: Any, target: Any) -> Level:
                weights = [size / world.size for size in sizes]
                return Level(world.cross_comm, common, weights, len(sizes), longest, source, target)

            # What a rank receives of its piece is up to max(sizes) / pieces times as long as the part.
            within = replace(common, max_bytes=max(max_bytes * pieces // max(sizes), 1), gather_below=0)
            inner = across if world.local_rank < pieces else None
            weights = [1 / local] * local
            self._level = Level(world.node_comm, within, weights, pieces, longest, self._wire, self._mean, inner)
        else:
            weights = [1 / world.size] * world.size
            self._level = Level(world.comm, common, weights, world.size, longest, self._wire, self._mean)
        self._plans: dict[Bucket, _Plan] = {}

    @property
    def moves(self) -> int:
        """Transfers of data so far, on all levels."""
        level: Level | None = self._level
        moves = 0
        while level is not None:
            moves += level.transfer.moves
            level = level.inner
        return moves

    def mean(self, bucket: Bucket, sources: Sequence[Any], out: Any) -> None:
        """Write the mean over the ranks of a bucket's gradients into `out`.

        Args:
            bucket: the plan.
            sources: flat device arrays; their memory must be ready.
            out: float32 device array, ready when this returns.
        """
        with self._device.active():
            self._average(bucket, sources, out)

    def _average(self, bucket: Bucket, sources: Sequence[Any], out: Any) -> None:
        plan = self._plan(bucket)
        for slot, source in zip(plan.slots, sources, strict=True):
            if slot.wire is not None:
                self._codec.encode_own(slot.start, source, slot.wire)
            if slot.gap is not None:
                self._device.clear(slot.gap)
        if not self._alone:
            self._level.mean(bucket.length, 0, self._begin)
        if bucket.length:
            self._codec.decode(plan.mean, out)
        self._device.synchronise()
        self._watch.lap("decode")

    def _begin(self) -> None:
        self._watch.lap("encode")
        self._level.transfer.wait()
        self._watch.lap("wait")

    def _plan(self, bucket: Bucket) -> _Plan:
        if bucket not in self._plans:
            wire_bytes = self._codec.codec.wire_bytes
            ends = [slot.offset for slot in bucket.slots[1:]] + [bucket.length]
            slots = []
            for slot, end in zip(bucket.slots, ends, strict=True):
                start = wire_bytes(slot.offset)
                stop = start + wire_bytes(slot.numel)
                wire = self._wire[start:stop] if start < stop else None
                gap = self._wire[stop : wire_bytes(end)] if stop < wire_bytes(end) else None
                slots.append(_Slot(slot.offset, wire, gap))
            source = self._wire if self._alone else self._mean
            self._plans[bucket] = _Plan(slots, device_bytes(source, 0, wire_bytes(bucket.length)))
        return self._plans[bucket]

    def close(self) -> None:
        """Nothing to free."""
