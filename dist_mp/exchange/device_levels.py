"""Means of encoded buffers on GPUs over one communicator, and over a second one within it.

The cuts are those of :mod:`dist_mp.exchange.pieces`, and so is the order of each sum. All views of memory are made
once for each length of a buffer, since making one on a GPU takes longer than queueing a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_mp.codec.base import Codec
from dist_mp.codec.cuda import CudaCodec, cuda_codec
from dist_mp.codec.cuda_device import CudaDevice
from dist_mp.comm.device_transfer import DeviceTransfer
from dist_mp.comm.transfer import Cuts
from dist_mp.exchange.pieces import cut_grain, numbers_within, piece_bounds
from dist_mp.exchange.seeded import SeededCodec
from dist_mp.exchange.stats import Stopwatch


class DeviceCodec:
    """The kernels of the codec that belongs to each place where a number is rounded."""

    def __init__(self, seeded: SeededCodec, device: CudaDevice) -> None:
        """Prepare the kernels."""
        self.codec, self._seeded = seeded.codec, seeded
        with device.active():
            self._kernels = cuda_codec(seeded.codec, device.threads)
        self._stream = device.stream

    def encode_own(self, start: int, values: Any, wire: Any) -> None:
        """Encode numbers of this rank's gradient, from number `start` of the bucket on."""
        self._of(self._seeded.own(start)).encode(values, wire, self._stream)

    def reduce(self, final: bool, start: int, wires: Any, weights: Sequence[float], out: Any, scratch: Any) -> None:
        """Encode the weighted sum of rows; of the mean over all ranks if `final`, otherwise of the node's."""
        codec = self._seeded.final(start) if final else self._seeded.node(start)
        self._of(codec).reduce(wires, weights, out, scratch, self._stream)

    def decode(self, wire: Any, out: Any) -> None:
        """Decode the mean."""
        self._kernels.decode(wire, out, stream=self._stream)

    def _of(self, codec: Codec) -> CudaCodec:
        return self._kernels.seeded(codec)


@dataclass(frozen=True)
class _Part:
    """A stretch of a buffer that one transfer can move, with the memory that it needs. Bytes unless said otherwise."""

    source: Any
    target: Any
    cuts: Cuts
    received: Any
    rows: Any
    """What was received, a row a rank; None if we own no piece."""
    own: Any
    """The mean of our piece over this level."""
    result: Any
    """The mean of our piece over all levels."""
    scratch: Any
    """FP32, as long as our piece."""
    first: int
    """First number of our piece in the buffer, or of the stretch where all is gathered."""
    numbers: int
    gathers: bool


@dataclass(frozen=True)
class Common:
    """What all levels share."""

    codec: DeviceCodec
    device: CudaDevice
    watch: Stopwatch
    direct: bool
    """Whether device memory is handed to MPI."""
    max_bytes: int
    """Longest transfer of one call."""
    gather_below: int
    """Wire bytes up to which a buffer is gathered whole."""


class Level:
    """Means over one communicator, of buffers that lie in `source`, into `target`.

    With an `inner` level, that takes the mean of each piece on to the mean over all ranks before it goes back.
    """

    def __init__(
        self,
        comm: Any,
        common: Common,
        weights: Sequence[float],
        owners: int,
        longest: int,
        source: Any,
        target: Any,
        inner: Callable[[int, Any, Any], Level] | None = None,
    ) -> None:
        """Allocate for buffers of up to `longest` numbers.

        Args:
            comm: the ranks.
            common: what all levels share.
            weights: of each rank's buffer in the mean.
            owners: ranks that own a piece, from rank 0 on.
            longest: numbers of the longest buffer.
            source: the buffer.
            target: gets the mean.
            inner: makes the next level from its longest buffer (numbers), source and target.
        """
        codec, device = common.codec, common.device
        self._codec, self._device, self._watch = codec, device, common.watch
        self._weights, self._owners, self._source, self._target = list(weights), owners, source, target
        self._rank, size = comm.Get_rank(), comm.Get_size()
        self._size = size
        wire = codec.codec.wire_bytes
        grain = cut_grain(codec.codec)
        self._step = max(1, numbers_within(codec.codec, common.max_bytes) // (owners * grain)) * owners * grain
        self._gather_numbers = numbers_within(codec.codec, min(common.gather_below, common.max_bytes // size))
        longest_piece = piece_bounds(min(longest, self._step), owners, grain)[1]
        numbers = max(longest_piece, min(longest, self._gather_numbers))
        self._received = device.empty(size * wire(numbers), np.uint8)
        self._scratch = device.empty(numbers, np.float32)
        self._own = device.empty(wire(longest_piece), np.uint8)
        self._result, self.inner = self._own, None
        if inner is not None:
            self._result = device.empty(wire(longest_piece), np.uint8)
            self.inner = inner(longest_piece, self._own, self._result)
        longest_wire = wire(min(longest, max(self._step, self._gather_numbers)))
        received = max(size * wire(numbers), longest_wire)
        self.transfer = DeviceTransfer(comm, device, common.direct, longest_wire, received)
        self._plans: dict[int, list[_Part]] = {}

    def mean(self, length: int, first: int, begin: Callable[[], None]) -> None:
        """Average the first `length` numbers of `source`, which begin at number `first` of the bucket.

        `begin` is called when the first bytes are ready to be sent.
        """
        transfer, watch, stats = self.transfer, self._watch, self._watch.stats
        for number, part in enumerate(self._plan(length)):
            transfer.ready(part.source)
            if number == 0:
                begin()
            else:
                watch.lap("move")
            if part.gathers:
                transfer.gather(part.source, part.received)
                watch.lap("move")
                self._reduce(part, first, part.target)
                stats.network_bytes += (self._size - 1) * len(part.source)
                continue
            transfer.to_owners(part.source, part.cuts, part.received)
            watch.lap("move")
            self._reduce(part, first, part.own)
            if self.inner is not None and part.numbers:
                self.inner.mean(part.numbers, first + part.first, lambda: watch.lap("reduce"))
            transfer.ready(part.result)
            watch.lap("reduce")
            transfer.to_all(part.result, part.cuts, part.target)
            watch.lap("move")
            others = self._size - 1
            stats.network_bytes += len(part.source) - len(part.result) + others * len(part.result)

    def _reduce(self, part: _Part, first: int, out: Any) -> None:
        if not part.numbers:
            return
        if self._size == 1 and self.inner is not None:
            self._device.copy(part.received, out)  # a mean of one is what was encoded already
            return
        final = self.inner is None
        self._codec.reduce(final, first + part.first, part.rows, self._weights, out, part.scratch)

    def _plan(self, length: int) -> list[_Part]:
        if length not in self._plans:
            starts = range(0, length, self._step)
            self._plans[length] = [self._part(s, min(self._step, length - s), length) for s in starts]
        return self._plans[length]

    def _part(self, start: int, length: int, whole: int) -> _Part:
        wire, rank = self._codec.codec.wire_bytes, self._rank
        gathers = self.inner is None and whole <= self._gather_numbers
        bounds = piece_bounds(length, self._owners, cut_grain(self._codec.codec))
        bounds += [length] * (self._size - self._owners)
        cuts = Cuts([wire(b) for b in bounds])
        first, numbers = (0, length) if gathers else (bounds[rank], bounds[rank + 1] - bounds[rank])
        nbytes = wire(length) if gathers else cuts.counts[rank]
        stretch = wire(start), wire(start) + wire(length)
        received = device_bytes(self._received, 0, self._size * nbytes)
        return _Part(
            source=device_bytes(self._source, *stretch),
            target=device_bytes(self._target, *stretch),
            cuts=cuts,
            received=received,
            rows=received.reshape(self._size, nbytes) if nbytes else None,
            own=device_bytes(self._own, 0, 0 if gathers else nbytes),
            result=device_bytes(self._result, 0, 0 if gathers else nbytes),
            scratch=self._scratch[:numbers] if numbers else None,
            first=start + first,
            numbers=numbers,
            gathers=gathers,
        )


def device_bytes(array: Any, start: int, stop: int) -> Any:
    """A stretch of a device array; an empty one is a host array, which MPI takes as well."""
    return array[start:stop] if start < stop else np.empty(0, np.uint8)
