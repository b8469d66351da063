"""Where the time of each rank goes, as means over steps."""

from __future__ import annotations

import numpy as np

from dist_mp.train.rank_times import RankTimes


def test_rank_times_are_means_over_their_steps() -> None:
    times = RankTimes(interval_seconds=1000)
    assert times.record(0, last=True) is None
    for step in (1.0, 3.0):
        parts = [step * np.array([1.0, 2.0]) * factor for factor in (1, 10, 100, 1000)]
        times.add(*parts)
        assert times.record(int(step)) is None
    record = times.record(4, last=True)
    assert record is not None and (record.step, record.steps) == (4, 2)
    assert (record.compute, record.exchange, record.wait, record.input) == (
        [2.0, 4.0], [20.0, 40.0], [200.0, 400.0], [2000.0, 4000.0],
    )  # fmt: skip
    assert times.record(5, last=True) is None
    soon = RankTimes(interval_seconds=0)
    soon.add(*[np.ones(1)] * 4)
    assert soon.record(1) is not None and soon.record(2) is None
