"""Error feedback of the gradients of a plan of buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.feedback import ErrorFeedback
from dist_mp.exchange.plan import Bucket
from dist_mp.exchange.seeded import SeededCodec


class Compensation(ABC):
    """Error feedback of all buckets. A gradient is encoded once more than without, to see what the wire will lose."""

    feedback: ErrorFeedback
    """Keeps the residuals, one for each gradient in the order of the variables."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        """Number the gradients of all buckets."""
        slots = sorted((slot for bucket in buckets for slot in bucket.slots), key=lambda slot: slot.index)
        self._place = {slot.index: place for place, slot in enumerate(slots)}
        self._numels = [slot.numel for slot in slots]
        self._longest = max((bucket.length for bucket in buckets), default=0)

    @abstractmethod
    def add(self, bucket: Bucket, sources: Sequence[Any], loss_scale: float) -> Sequence[Any]:
        """The gradients of a bucket with their residuals, until the next call."""

    def settle(self, applied: bool) -> None:
        """The step is over: the residuals of an update that was applied take the place of the old ones."""
        if applied:
            self.feedback.commit()
        else:
            self.feedback.discard()


class HostCompensation(Compensation):
    """Error feedback of gradients in host memory."""

    def __init__(self, codec: SeededCodec, buckets: Sequence[Bucket]) -> None:
        """Allocate residuals of 0 for the gradients of all buckets."""
        super().__init__(buckets)
        self.feedback = ErrorFeedback(self._numels)
        self._codec = codec
        self._wire = np.empty(codec.codec.wire_bytes(max(self._numels, default=0)), np.uint8)
        self._sums = np.empty(self._longest, np.float32)

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
