"""The table of codecs."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from dist_mp.codec.base import Codec
from dist_mp.codec.half import FloatCodec
from dist_mp.errors import UserError


def _table() -> dict[str, Callable[[], Codec]]:
    return {
        "fp32": lambda: FloatCodec("fp32", np.float32),
        "fp16": lambda: FloatCodec("fp16", np.float16),
        "bf16": lambda: FloatCodec("bf16", ml_dtypes.bfloat16),
    }


def codec_names() -> tuple[str, ...]:
    """All codecs by name."""
    return tuple(_table())


def codec_by_name(name: str) -> Codec:
    """The codec of this name.

    Raises:
        UserError: there is none; the message lists those that are.
    """
    table = _table()
    if name not in table:
        raise UserError(f"unknown codec {name!r}: valid are {', '.join(table)}")
    return table[name]()
