"""Error feedback of the gradients of a plan of buckets in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.feedback import ErrorFeedback
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec


class HostCompensation:
    """Error feedback of all buckets. A gradient is encoded once more than without, to see what the wire will lose."""

    def __init__(self, codec: SeededCodec, buckets: Sequence[Bucket]) -> None:
        """Allocate residuals of 0 for the gradients of all buckets."""
        slots = sorted((slot for bucket in buckets for slot in bucket.slots), key=lambda slot: slot.index)
        self._place = {slot.index: place for place, slot in enumerate(slots)}
        self.feedback = ErrorFeedback([slot.numel for slot in slots])
        self._codec = codec
        self._wire = np.empty(codec.codec.wire_bytes(max((slot.numel for slot in slots), default=0)), np.uint8)
        self._sums = np.empty(max((bucket.length for bucket in buckets), default=0), np.float32)

    def add(self, bucket: Bucket, sources: Sequence[NDArray[Any]], loss_scale: float) -> list[NDArray[np.float32]]:
        """The gradients of a bucket with their residuals, until the next call."""
        sums = []
        for slot, source in zip(bucket.slots, sources, strict=True):
            codec = self._codec.own(slot.offset)
            wire = self._wire[: codec.wire_bytes(slot.numel)]
            place = self._place[slot.index]
            total = self._sums[slot.offset : slot.offset + slot.numel]
            total[:] = self.feedback.encode(place, source.reshape(-1), codec, wire, loss_scale)
            sums.append(total)
        return sums

    def settle(self, applied: bool) -> None:
        """The step is over."""
        if applied:
            self.feedback.commit()
        else:
            self.feedback.discard()
