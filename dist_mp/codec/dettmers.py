"""The 8-bit types of Dettmers, '8-Bit Approximations for Parallelism in Deep Learning' (2016), section 2.

Each is a sign and 7 bits. The values are those of the author's code (clusterNet, `clusterKernels.cu`), scaled so that
the largest is 1. Codes here count the magnitudes upwards from 0, which stands for zero; the author's bytes count the
same magnitudes in another order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.book import CodeBook, nearest_bounds, smallest_not_below

ZERO_BELOW = 1.5e-6
"""The dynamic tree turns numbers below this into zero (as the author's code; the midpoint would be 1.375e-6)."""


def dynamic_tree() -> CodeBook:
    """Leading zeros choose the decade, the bits after the first one walk down a tree that bisects [0.1, 1].

    The first split of the tree is at 0.45, the later ones at midpoints; a leaf stands for the centre of its interval.
    With z leading zeros (0 to 5) 6 - z bits are left for the tree, which makes 126 values; zero and the maximum itself
    have the other two codes.
    """
    values = [0.0, 1.0]
    for zeros in range(6):
        leaves = 1 << (5 - zeros)
        centres = (np.arange(leaves) + 0.5) / leaves
        values += list(np.concatenate([0.1 + 0.35 * centres, 0.45 + 0.55 * centres]) / 10.0**zeros)
    magnitudes = np.sort(np.array(values)).astype(np.float32)
    bounds = nearest_bounds(magnitudes)
    bounds[0] = smallest_not_below(np.array([ZERO_BELOW]))[0]
    return CodeBook(magnitudes, bounds)


def linear() -> CodeBook:
    """Even steps: i / 127."""
    return _book(np.arange(128.0))


def static_tree() -> CodeBook:
    """Three bits of exponent and a tree of 4 bits whose first split is at 4.5: 8 values below it, 8 above, in a decade.

    ``10**(e - 6) * m`` for e = 0..7 and m from 1 in steps of 0.4375 to 4.5, from there in steps of 0.675 to 9.225.
    The smallest of them is given up for zero.
    """
    digits = np.concatenate([1 + 0.4375 * np.arange(8), 4.5 + 0.675 * np.arange(8)])
    values = np.outer(10.0 ** np.arange(-6, 2), digits).ravel()
    values[0] = 0.0
    return _book(values)


def mantissa() -> CodeBook:
    """Three bits of exponent and 4 bits of mantissa, to the base of ten: ``m * 10**(e - 6)``, m = 0..15, e = 0..7.

    Values that occur twice have one code, so that some codes are not in use.
    """
    # In units of 1e-6, where the products are whole numbers and equal values are equal.
    return _book(np.unique(np.outer(10.0 ** np.arange(8), np.arange(16.0))))


def _book(values: NDArray[np.float64]) -> CodeBook:
    magnitudes = (np.sort(values) / values.max()).astype(np.float32)
    return CodeBook(magnitudes, nearest_bounds(magnitudes))
