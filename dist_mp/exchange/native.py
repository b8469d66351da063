"""Algorithm `native`: MPI_Allreduce, for comparison and for networks that reduce in hardware.

MPI sums in the wire's type and rounds each partial sum. A float16 sum may overflow where the mean would not, so the
ranks first agree on their largest number; a bucket whose sum could overflow is summed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.half import add_into, convert_scaled, largest_half
from dist_mp.comm.native import NativeSum
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.pieces import aligned, encode_slots
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec
from dist_mp.exchange.stats import Stopwatch

CODECS = ("fp32", "fp16", "bf16")
SAFE_HALF_SUM = 60000.0
"""Sums up to this stay finite in float16 (largest: 65504), also when every partial sum is rounded up."""


class NativeMean:
    """Means of buckets over all ranks by MPI_Allreduce, for the codecs that MPI can sum."""

    def __init__(self, world: World, seeded: SeededCodec, longest: int, watch: Stopwatch, *, max_bytes: int) -> None:
        """Allocate for buckets of up to `longest` numbers. Collective.

        Raises:
            UserError: codes of this codec cannot be summed.
        """
        codec = seeded.codec
        if codec.name not in CODECS:
            raise UserError(
                f"exchange.algorithm native cannot sum codec {codec.name}: use {', '.join(CODECS)}, "
                "or algorithm shared or pieces"
            )
        self._size, self._seeded, self._codec, self._watch = world.size, seeded, codec, watch
        self._sum = NativeSum(world, add_into, add_into, max_bytes)
        self._scale = np.float32(1 / world.size)
        self._wire = aligned(0 if codec.name == "fp32" else codec.wire_bytes(longest))

    def mean(self, bucket: Bucket, sources: Sequence[NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Write the mean over the ranks of a bucket's gradients into `out`."""
        codec, watch, name = self._codec, self._watch, self._codec.name
        wire = out.view(np.uint8) if name == "fp32" else self._wire[: codec.wire_bytes(bucket.length)]
        encode_slots(self._seeded, bucket, sources, wire)
        watch.lap("encode")
        self._sum.wait()
        watch.lap("wait")
        in_float32 = name == "fp32"
        if name == "fp16":
            largest = self._sum.largest(float(largest_half(wire.view(np.uint16))))
            if largest * self._size > SAFE_HALF_SUM:
                codec.decode(wire, out)
                in_float32 = True
        if in_float32:
            self._sum.sum_float32(out)
            watch.lap("move")
            convert_scaled(out, out, self._scale)
        else:
            if name == "fp16":
                self._sum.sum_half(wire.view(np.uint16))
            else:
                self._sum.sum_bfloat16(wire.view(np.int16))
            watch.lap("move")
            codec.decode(wire, out, float(self._scale))
        watch.lap("decode")
        # What the best algorithms send: each number to its owner, and its sum to all.
        sent = 4 * bucket.length if in_float32 else len(wire)
        watch.stats.network_bytes += 2 * sent * (self._size - 1) // self._size

    def close(self) -> None:
        """Free MPI's operations."""
        self._sum.close()
