"""Random numbers for stochastic rounding: a pure function of a seed and the place of a number in its buffer.

A number between two codes goes to the upper one with the probability that makes the mean right (Gupta et al. 2015,
section 3.1). With a counter in place of a state, the random number is the same in every rerun, in any order of
computation and on any device (Salmon et al. 2011, 'Parallel random numbers: as easy as 1, 2, 3').
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from dist_mp.codec.lanes import FLOATS, INTS, LANES, ints, splat

FIRST, SECOND = 0x21F0AAAD, 0x735A2D97
"""Multipliers of a 32-bit mixer with little bias, by C. Wellons' search ('hash prospector', lowbias32 family)."""


def rounding_seed(*words: int) -> int:
    """A 64-bit seed from whole numbers such as run seed, rank, step and bucket. Other words give other numbers.

    Each word is mixed in by SplitMix64 (Steele, Lea and Flood 2014, figure 16).
    """
    mask = (1 << 64) - 1
    seed = 0
    for word in words:
        seed = (seed + word + 0x9E3779B97F4A7C15) & mask
        seed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & mask
        seed = (seed ^ seed >> 27) * 0x94D049BB133111EB & mask
        seed ^= seed >> 31
    return seed


def uniform(seed: int, positions: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Numbers in [0, 1) in steps of 2**-24: the reference of :func:`emit_uniform`."""
    low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    h = positions ^ low
    h = (h ^ h >> np.uint32(16)) * np.uint32(FIRST)
    h = ((h ^ h >> np.uint32(15)) + high) * np.uint32(SECOND)
    h ^= h >> np.uint32(15)
    return (h >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def emit_uniform(builder: Any, seed: Any, position: Any, group: int) -> Any:
    """LLVM code for 16 of these numbers, from `position` (uint32) on; `seed` is an uint64."""
    i32 = ir.IntType(32)
    low = splat(builder, builder.trunc(seed, i32))
    high = splat(builder, builder.trunc(builder.lshr(seed, ir.Constant(ir.IntType(64), 32)), i32))
    lanes = ir.Constant(INTS, [LANES * group + lane for lane in range(LANES)])
    h = builder.xor(builder.add(splat(builder, position), lanes), low)
    h = builder.mul(builder.xor(h, builder.lshr(h, ints(16))), ints(FIRST))
    h = builder.mul(builder.add(builder.xor(h, builder.lshr(h, ints(15))), high), ints(SECOND))
    h = builder.xor(h, builder.lshr(h, ints(15)))
    step = ir.Constant(FLOATS, [2.0**-24] * LANES)
    return builder.fmul(builder.sitofp(builder.lshr(h, ints(8)), FLOATS), step)
