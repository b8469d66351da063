"""The codec of an exchange with the random numbers that belong to each place where it rounds."""

from __future__ import annotations

from dist_mp.codec.base import Codec
from dist_mp.codec.rounding import rounding_seed

FINAL, NODE, OWN = range(3)
"""Where a number is rounded: in the mean over all ranks, in a node's mean, in a rank's own gradient."""


class SeededCodec:
    """A codec that rounds at random by seed, step, bucket and place, so that a rerun gives the same bits.

    Ranks encode their gradients with random numbers of their own, since equal ones would not average out. The mean
    over all ranks is rounded with the same on every rank, for several may round the same piece. Codecs that round to
    nearest pass through as they are.
    """

    def __init__(self, codec: Codec, seed: int, rank: int, node: int) -> None:
        """Take the codec, the seed of the run, and who we are."""
        self.codec = codec
        self._seed, self._rank, self._node = seed, rank, node
        self._step = self._bucket = 0

    def begin(self, step: int, bucket: int) -> None:
        """What follows belongs to this step and bucket."""
        self._step, self._bucket = step, bucket

    def own(self, start: int) -> Codec:
        """For this rank's gradient, from number `start` of the bucket on."""
        return self._seeded(OWN, self._rank, start)

    def node(self, start: int) -> Codec:
        """For the mean of this rank's node, from number `start` on, where there are other nodes."""
        return self._seeded(NODE, self._node, start)

    def final(self, start: int) -> Codec:
        """For the mean over all ranks, from number `start` on."""
        return self._seeded(FINAL, 0, start)

    def _seeded(self, level: int, who: int, start: int) -> Codec:
        if not self.codec.stochastic:
            return self.codec
        return self.codec.seeded(rounding_seed(self._seed, self._step, self._bucket, level, who), start)
