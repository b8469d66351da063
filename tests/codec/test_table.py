"""The table of codecs."""

from __future__ import annotations

import pytest

from dist_mp.codec.reference import reference_codecs
from dist_mp.codec.table import codec_by_name, codec_names
from dist_mp.errors import UserError


def test_every_codec_has_a_reference_of_its_name_and_size() -> None:
    references = reference_codecs()
    assert set(codec_names()) == set(references)
    for name in codec_names():
        codec = codec_by_name(name)
        assert codec.name == references[name].name == name
        assert codec.block == references[name].block
        for n in (0, 1, 5, 1000):
            assert codec.wire_bytes(n) == references[name].wire_bytes(n)


def test_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"fp8x.*fp32, fp16, bf16"):
        codec_by_name("fp8x")


def test_a_negative_block_is_refused() -> None:
    with pytest.raises(UserError, match="-1"):
        codec_by_name("linear", -1)
