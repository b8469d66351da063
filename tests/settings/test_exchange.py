"""Settings of the exchange that depend on each other."""

from __future__ import annotations

import pytest

from dist_mp import settings
from dist_mp.errors import UserError


def test_bucket_size_may_be_chosen_by_the_run() -> None:
    for word in ("auto", "null"):
        assert settings.load("configs/quickstart.yaml", [f"exchange.bucket_mib={word}"]).exchange.bucket_mib is None
    assert settings.load("configs/quickstart.yaml", ["exchange.bucket_mib=2"]).exchange.bucket_mib == 2.0
    with pytest.raises(UserError, match=r"exchange.bucket_mib=0: must be a number > 0 or null, got 0"):
        settings.load("configs/quickstart.yaml", ["exchange.bucket_mib=0"])


def test_random_rounding_needs_buckets_that_stay_the_same() -> None:
    words = ["exchange.rounding=stochastic", "exchange.codec=linear"]
    assert settings.load("configs/quickstart.yaml", words).exchange.rounding == "stochastic"
    with pytest.raises(UserError, match=r"bucket_mib auto needs rounding nearest, got stochastic"):
        settings.load("configs/quickstart.yaml", [*words, "exchange.bucket_mib=auto"])
