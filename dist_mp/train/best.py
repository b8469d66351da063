"""Which evaluation was the best one so far, and whether it is time to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dist_mp.errors import UserError
from dist_mp.train.checkpoint_files import Best

LOWER_IS_BETTER = ("loss", "perplexity")


def metric_name(name: str, metrics: Mapping[str, float]) -> str:
    """The metric that `train.metric` names; auto is auc where there is one, else loss.

    Raises:
        UserError: the evaluation gives no such metric.
    """
    chosen = ("auc" if "auc" in metrics else "loss") if name == "auto" else name
    if chosen not in metrics:
        raise UserError(f"train.metric: {name!r} is not evaluated here; valid are auto, {', '.join(metrics)}")
    return chosen


def is_better(name: str, value: float, than: float | None) -> bool:
    """Whether a value of the metric `name` is better than another one (None: there is none yet); NaN never is."""
    if math.isnan(value):
        return False
    return than is None or (value < than if name in LOWER_IS_BETTER else value > than)


def best_after(best: Best, name: str, value: float, epoch: int) -> Best:
    """The best evaluation after another one, of `epoch`."""
    if is_better(name, value, best.value):
        return Best(value=value, epoch=epoch, waited=0)
    return best.model_copy(update={"waited": best.waited + 1})
