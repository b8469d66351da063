"""The 8-bit floating-point types with a shared scale.

Micikevicius et al., 'FP8 Formats for Deep Learning' (2022), table 1. The scale of a block is a power of two, so that
scaling rounds nothing. Numbers within 2**124 of float32's largest may round to 2**128, which is infinity.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from dist_mp.codec.book import CodeBook, nearest_bounds


def fp8_e4m3() -> CodeBook:
    """Four bits of exponent, three of mantissa, up to 448. The byte is that of `float8_e4m3fn`."""
    codes = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    return _book(codes.astype(np.float32), exponent=8)


def fp8_e5m2() -> CodeBook:
    """Five bits of exponent, two of mantissa, up to 57344. The byte is that of `float8_e5m2`."""
    codes = np.arange(0x7C, dtype=np.uint8).view(ml_dtypes.float8_e5m2)
    return _book(codes.astype(np.float32), exponent=15)


def _book(magnitudes: np.ndarray, exponent: int) -> CodeBook:
    return CodeBook(magnitudes, nearest_bounds(magnitudes, ties_to_even=True), exponent=exponent)
