"""Further models as the training loop runs them: N ranks train what one does, in FP32; 16 bits stay in step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.train.runs import alone, one_thread, train

MODELS: dict[str, dict[str, Any]] = {
    "translation": {
        "data": {"kind": "pairs", "samples": 60, "max_length": 3, "symbols": 6},
        "model": {"kind": "translation", "units": 8},
    },
    "bidirectional": {
        "data": {"kind": "labelled", "format": "shapes", "samples": 60},
        "model": {
            "kind": "classifier", "cell": "gru", "bidirectional": True, "convolutions": 1, "filters": 6, "stride": 4,
            "units": 6,
        },
    },
    "detector": {"data": {"kind": "shapes", "samples": 60}, "model": {"kind": "detector", "filters": 2}},
}  # fmt: skip


def settings(name: str, rows: int, **changes: Any) -> Any:
    from dist_mp.config import Config

    train_settings = {"batch_size": rows, "epochs": 100, "max_steps": 3, "eval_every": 100, "check_weights_every": 1}
    common = {"precision": "fp32", "optimizer": {"name": "momentum"}, "schedule": {"base": 0.02, "rule": "constant"}}
    return Config.model_validate(common | MODELS.get(name, {}) | {"train": train_settings} | changes)


@pytest.mark.mpi(ranks=[2], timeout=280)
def test_ranks_train_what_one_trains(ranks: int) -> None:
    """Weights after three steps and held-out metrics, of rows of unequal weight; 16 bits: ranks stay equal."""
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        for name in MODELS:
            one, expected = train(alone(world), settings(name, 12))
            parts, summary = train(world, settings(name, 12 // ranks))
            for a, b in zip(parts.masters.values(), one.masters.values(), strict=True):
                np.testing.assert_allclose(a, b, atol=2e-5, err_msg=name)
            assert summary.metrics.keys() == expected.metrics.keys()
            for key, value in expected.metrics.items():
                assert summary.metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-4), (name, key)
        gan = {
            "data": {"kind": "labelled", "format": "shapes", "samples": 60},
            "model": {"kind": "gan", "filters": 2, "noise": 4},
            "loss_scale": {"mode": "constant", "initial": 8.0},
        }
        summary = train(world, settings("gan", 4, precision="fp16", **gan))[1]
        assert summary.applied_steps == 3 and all(np.isfinite(v) for v in summary.metrics.values())
