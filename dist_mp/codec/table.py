"""The table of codecs."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from dist_mp.codec.base import Codec
from dist_mp.codec.block import DEFAULT_BLOCK, BlockCodec
from dist_mp.codec.book import CodeBook
from dist_mp.codec.dettmers import dynamic_tree, linear, mantissa, static_tree
from dist_mp.codec.dynamic_map import dynamic_uniform
from dist_mp.codec.fp8 import fp8_e4m3, fp8_e5m2
from dist_mp.codec.half import FloatCodec
from dist_mp.codec.one_bit import OneBitCodec
from dist_mp.errors import UserError


def _table(block: int, stochastic: bool) -> dict[str, Callable[[], Codec]]:
    def of_book(name: str, book: Callable[[], CodeBook]) -> Callable[[], Codec]:
        return lambda: BlockCodec(name, book(), block, stochastic=stochastic)

    books = {
        "fp8_e4m3": fp8_e4m3,
        "fp8_e5m2": fp8_e5m2,
        "dynamic_tree": dynamic_tree,
        "dynamic_uniform": dynamic_uniform,
        "linear": linear,
        "static_tree": static_tree,
        "mantissa": mantissa,
    }
    return {
        "fp32": lambda: FloatCodec("fp32", np.float32),
        "fp16": lambda: FloatCodec("fp16", np.float16),
        "bf16": lambda: FloatCodec("bf16", ml_dtypes.bfloat16),
        **{name: of_book(name, book) for name, book in books.items()},
        "one_bit": lambda: OneBitCodec(block),
    }


def codec_names() -> tuple[str, ...]:
    """All codecs by name."""
    return tuple(_table(DEFAULT_BLOCK, False))


def codec_by_name(name: str, block: int = DEFAULT_BLOCK, *, stochastic: bool = False) -> Codec:
    """The codec of this name.

    Args:
        name: one of :func:`codec_names`.
        block: numbers that share a scale, in the codecs that have one; 0: all numbers of one call.
        stochastic: round at random, right in the mean (8-bit codecs).

    Raises:
        UserError: there is none; the message lists those that are. Or the block is negative, or there is no
            stochastic rounding to this type.
    """
    table = _table(block, stochastic)
    if name not in table:
        raise UserError(f"unknown codec {name!r}: valid are {', '.join(table)}")
    if block < 0:
        raise UserError(f"exchange.block is {block}: it must be 0 (one scale for all) or a number of numbers")
    if name == "one_bit" and (block == 0 or block % 8):
        raise UserError(f"exchange.block is {block}: codec one_bit needs a multiple of 8")
    codec = table[name]()
    if stochastic and not isinstance(codec, BlockCodec):
        raise UserError(f"codec {name} rounds to nearest: stochastic rounding is for 8-bit code books")
    return codec
