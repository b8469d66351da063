"""The learning rate as a pure function of step, epoch and number of workers.

The damped rule is the one that Svyatkovskiy, Kates-Harbeck and Tang (MLHPC 2017, arXiv 1912.00286) use to train with
O(100) workers: the linear rule of synchronous training, n * lambda_0, is divided by 1 + n / n_0, so that it is linear
for few workers, half of linear at n_0 and approaches n_0 * lambda_0 for many. `linear`, `sqrt` and `constant` stand
beside it for comparison.
"""

from __future__ import annotations

import math

from dist_mp.config import ScheduleConfig


def worker_factor(rule: str, num_workers: int, half_workers: float) -> float:
    """The factor on lambda_0 for so many workers, dimensionless."""
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, got {num_workers}")
    if rule == "damped":
        return num_workers / (1.0 + num_workers / half_workers)
    if rule == "linear":
        return float(num_workers)
    if rule == "sqrt":
        return math.sqrt(num_workers)
    if rule == "constant":
        return 1.0
    raise ValueError(f"unknown rule {rule!r}")


def worker_rate(config: ScheduleConfig, num_workers: int) -> float:
    """The learning rate of so many workers before decay, warm-up and cap.

    With `normalize` the factor is divided by its own value at one worker: the quotient is exactly 1.0 there, and one
    worker trains at exactly `base`.
    """
    factor = worker_factor(config.rule, num_workers, config.half_workers)
    if config.normalize:
        factor /= worker_factor(config.rule, 1, config.half_workers)
    return config.base * factor


def learning_rate(config: ScheduleConfig, step: int, epoch: int, num_workers: int) -> float:
    """The learning rate of a step.

    Args:
        config: rule, base rate and its modifiers.
        step: steps before this one since the start of the run, skipped ones included.
        epoch: epochs before this one.
        num_workers: ranks that take part, virtual ones included.

    Returns:
        The rate: the rule's, warmed up from that of one worker, decayed per epoch, capped, in this order.
    """
    rate = worker_rate(config, num_workers)
    if step < config.warmup_steps:
        single = worker_rate(config, 1)
        rate = single + (rate - single) * (step / config.warmup_steps)
    rate *= config.decay ** max(0, epoch - config.decay_after)
    return rate if config.cap is None else min(rate, config.cap)
