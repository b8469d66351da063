"""Which evaluation is better, and when patience ends."""

from __future__ import annotations

import pytest

from dist_mp.errors import UserError
from dist_mp.train.best import best_after, is_better, metric_name
from dist_mp.train.checkpoint_files import Best


def test_auto_is_auc_or_loss() -> None:
    assert metric_name("auto", {"loss": 1.0, "auc": 0.5}) == "auc"
    assert metric_name("auto", {"loss": 1.0, "perplexity": 2.7}) == "loss"
    assert metric_name("perplexity", {"loss": 1.0, "perplexity": 2.7}) == "perplexity"
    with pytest.raises(UserError, match=r"train\.metric: 'f2' is not evaluated here; valid are auto, loss, auc"):
        metric_name("f2", {"loss": 1.0, "auc": 0.5})


def test_direction_and_nan() -> None:
    assert is_better("loss", 1.0, 2.0) and not is_better("loss", 2.0, 2.0) and not is_better("loss", 3.0, 2.0)
    assert is_better("auc", 0.9, 0.8) and not is_better("auc", 0.7, 0.8)
    assert is_better("auc", 0.1, None) and not is_better("auc", float("nan"), None)


def test_patience_counts_from_the_best_one() -> None:
    best = Best()
    seen = []
    for epoch, loss in enumerate([3.0, 2.0, 2.5, float("nan"), 1.0, 1.0]):
        best = best_after(best, "loss", loss, epoch)
        seen.append((best.value, best.epoch, best.waited))
    assert seen == [(3.0, 0, 0), (2.0, 1, 0), (2.0, 1, 1), (2.0, 1, 2), (1.0, 4, 0), (1.0, 4, 1)]
