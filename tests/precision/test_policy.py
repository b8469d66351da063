"""Which type `auto` picks, and what a run is told of the one it asked for."""

from __future__ import annotations

import pytest

from dist_mp.precision.policy import host_features, resolve_precision

AMX = {"amx-bf16": True}
ZEN = {"avx512bf16": True}
OLD = {"avx2": True}


@pytest.mark.parametrize(
    ("has_gpu", "features", "expected"),
    [(True, OLD, "fp16"), (False, AMX, "bf16"), (False, ZEN, "bf16"), (False, OLD, "fp32")],
    ids=["gpu", "amx", "avx512bf16", "old"],
)
def test_auto(has_gpu: bool, features: dict[str, bool], expected: str) -> None:
    chosen = resolve_precision("auto", has_gpu, features)
    assert chosen.name == expected
    assert chosen.reason.startswith("auto: ")


@pytest.mark.parametrize("wanted", ["fp16", "bf16", "fp32"])
def test_explicit_is_kept(wanted: str) -> None:
    for gpu in (True, False):
        assert resolve_precision(wanted, gpu, OLD).name == wanted


def test_fp16_on_a_cpu_says_that_it_is_not_for_speed() -> None:
    assert "bf16 is faster here" in resolve_precision("fp16", False, ZEN).reason
    assert "FP32's rate" in resolve_precision("fp16", False, OLD).reason
    assert resolve_precision("fp16", False, {"avx512fp16": True}).reason == "as configured"


def test_host_features_are_booleans() -> None:
    features = host_features()
    assert features
    assert all(isinstance(v, bool) for v in features.values())
