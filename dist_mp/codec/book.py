"""A code book of 8 bits: which magnitudes the codes stand for, and from where on a number gets each code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CODES = 128
"""Magnitudes that 7 bits tell apart; the eighth bit is the sign."""


KEYS = 768


@dataclass(frozen=True)
class CodeBook:
    """Magnitudes of the codes 0, 1, 2, ... and the scale that goes with them.

    A byte on the wire is ``sign << 7 | code``. Code 0 is the magnitude 0, so that zeroed bytes decode to zeros.
    """

    magnitudes: NDArray[np.float32]
    """Ascending, the first is 0, at most 128."""
    bounds: NDArray[np.float32]
    """``bounds[k - 1]`` is the smallest float32 number that gets code k."""
    top: float | None = None
    """A magnitude beyond all others that only positive numbers have. Its byte is 128, which would be minus zero; in
    such a book zero has no sign. Its bound is the last of `bounds`."""
    exponent: int | None = None
    """None: the scale of a block is its largest magnitude. Otherwise the largest magnitude of the book is
    ``1.75 * 2**exponent`` and the scale is the smallest power of two that brings the block within it."""

    def tiled_bounds(self) -> NDArray[np.int32]:
        """Bounds for a search by bits, from the high bit of a code to the low one, as rows of 16.

        At bit 6 - l the search has found the l higher bits, p, and asks whether the code is at least
        ``(2p + 1) << (6 - l)``. So level l holds 2**l bounds, in a table of 16, 32 or 64 entries that repeats if it is
        shorter: whatever lies above the l bits of an index does not matter. An entry is one below the bits of the
        bound, for ``entry - bits`` is negative just where a number reaches the bound.
        """
        full = np.full(CODES - 1, np.inf, np.float32)
        full[: len(self.magnitudes) - 1] = self.bounds[: len(self.magnitudes) - 1]
        return _levels(full)

    def encoding_tables(self) -> NDArray[np.int32] | NDArray[np.uint32]:
        """What encoding to the nearest needs: the tiled bounds, and behind them the tables by key where they fit.

        A key is the exponent and the first `kept` bits of mantissa of a number. The tables by key are uint32: shift
        that makes a key, key of entry 0, last entry, shift to the 16 bits behind a key, 12 numbers of nothing; then 768
        bytes, ``within << 7 | code``, where code is the code at the start of the key and `within` whether one bound
        lies in it; then for each code the 16 bits behind the key of the bound above it.
        """
        tiled = self.tiled_bounds()
        bits = self.bounds.view(np.int32).astype(np.int64)
        for kept in range(2, 8):
            shift = 23 - kept
            keys = bits >> shift
            first, entries = keys[0] - 1, keys[-1] - keys[0] + 3
            if self.top is not None or entries > KEYS:
                break
            if (np.diff(keys) > 0).all():
                starts = (first + np.arange(entries)) << shift
                codes = np.searchsorted(bits, starts, side="left")
                within = np.isin(first + np.arange(entries), keys)
                table = np.zeros(KEYS, np.uint8)
                table[:entries] = codes | within << 7
                behind = np.zeros(CODES, np.uint16)
                behind[: len(bits)] = bits >> (shift - 16) & 0xFFFF
                header = np.zeros(16, np.uint32)
                header[:4] = shift, first, entries - 1, shift - 16
                return np.concatenate([tiled.view(np.uint32), header, table.view(np.uint32), behind.view(np.uint32)])
        return tiled

    def rounding_tables(self) -> NDArray[np.int32]:
        """What stochastic rounding needs: the magnitudes arranged as bounds, by code, and the next larger ones by code.

        The first part finds the largest magnitude that is not above a number; all are float32, by their bits.
        """
        full = np.full(CODES - 1, np.inf, np.float32)
        full[: len(self.magnitudes) - 1] = self.magnitudes[1:]
        return np.concatenate([_levels(full), self.table().view(np.int32), self.following().view(np.int32)])

    def table(self) -> NDArray[np.float32]:
        """128 magnitudes by code; codes that are not in use give the largest."""
        return np.pad(self.magnitudes, (0, CODES - len(self.magnitudes)), mode="edge")

    def decoding_table(self) -> NDArray[np.float32]:
        """128 magnitudes by code, and behind them their bytes: all the lowest ones, up to the highest ones."""
        table = self.table()
        planes = np.ascontiguousarray(table.view(np.uint8).reshape(CODES, 4).T)
        return np.concatenate([table, planes.view(np.float32).ravel()])

    def following(self) -> NDArray[np.float32]:
        """128 magnitudes by code, each the next larger one."""
        last = self.magnitudes[-1] if self.top is None else np.float32(self.top)
        return np.append(self.table()[1:], last).astype(np.float32)


def _levels(bounds: NDArray[np.float32]) -> NDArray[np.int32]:
    below = bounds.view(np.int32) - np.int32(1)
    levels = []
    for level in range(7):
        entries = below[(2 * np.arange(1 << level) + 1 << (6 - level)) - 1]
        levels.append(np.tile(entries, max(1, 16 >> level)))
    return np.concatenate(levels)


def nearest_bounds(magnitudes: NDArray[np.float32], ties_to_even: bool = False) -> NDArray[np.float32]:
    """The smallest float32 numbers that are nearest to each magnitude but the first.

    Args:
        magnitudes: ascending.
        ties_to_even: a number halfway between two magnitudes goes to the even code; otherwise to the larger one.
    """
    exact = magnitudes.astype(np.float64)
    middle = (exact[:-1] + exact[1:]) / 2
    bounds = smallest_not_below(middle)
    if ties_to_even:
        odd = np.arange(1, len(magnitudes)) % 2 == 1
        beyond = odd & (bounds.astype(np.float64) == middle)
        bounds[beyond] = np.nextafter(bounds[beyond], np.float32(np.inf))
    return bounds


def smallest_not_below(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The smallest float32 numbers that are not below `values`."""
    rounded = values.astype(np.float32)
    return np.where(rounded.astype(np.float64) < values, np.nextafter(rounded, np.float32(np.inf)), rounded)
