"""Which curves the report shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_mp.experiments.report.chart import Chart, draw
from dist_mp.experiments.report.run import Run
from dist_mp.experiments.report.series import Series, thin


def step_series(runs: Sequence[Run], column: str) -> list[Series]:
    """A field of the step records over the steps."""
    return [thin(run.number, run.label, run.data.column("step"), run.data.column(column)) for run in runs]


def training_charts(runs: Sequence[Run]) -> list[Chart]:
    """Losses, metrics, learning rate, gradient norm, loss scale and speed."""
    unit, seconds = time_unit(runs)
    by_time = [thin(run.number, run.label, run.elapsed / seconds, run.data.column("loss")) for run in runs]
    scale_note = "factor on the loss"
    skipped = [
        thin(run.number, run.label, run.data.column("step")[run.data.column("applied") == 0], np.ones(run.shot.skipped))
        for run in runs
    ]
    if any(run.shot.skipped for run in runs):
        scale_note += "; marks at the foot: steps that were skipped because the gradient was not finite"
    charts = [
        draw("loss", "Training loss", "mean over the valid time steps of all ranks", step_series(runs, "loss")),
        draw(
            "loss-time",
            "Training loss by time",
            "wall time, without stops and steps done again",
            by_time,
            x_label=unit,
            x_zero=True,
        ),
        *metric_charts(runs),
        draw("rate", "Learning rate", "of each step", step_series(runs, "learning_rate"), zero=True),
        draw("norm", "Gradient norm", "global norm before clipping, unscaled", step_series(runs, "gradient_norm")),
        draw("scale", "Loss scale", scale_note, step_series(runs, "loss_scale"), powers_of_two=True, marks=skipped),
    ]
    return [chart for chart in charts if chart is not None]


def metric_charts(runs: Sequence[Run]) -> list[Chart | None]:
    """A chart for each held-out metric, over the epochs that are done."""
    names = list(dict.fromkeys(name for run in runs for epoch in run.data.epochs.values() for name in epoch["metrics"]))
    charts = []
    for index, name in enumerate(names):
        series = []
        for run in runs:
            epochs = [(number + 1, e["metrics"][name]) for number, e in run.data.epochs.items() if name in e["metrics"]]
            series.append(thin(run.number, run.label, [e for e, _ in epochs], [value for _, value in epochs]))
        charts.append(
            draw(f"metric-{index}", f"Held-out {name}", "after each evaluated epoch", series, x_label="epoch")
        )
    return charts


def speed_charts(runs: Sequence[Run]) -> list[Chart]:
    """Speed and the share of a step that is not computation."""
    rest = [
        thin(run.number, run.label, run.data.column("step"), 100 * (1 - run.data.column("share_compute")))
        for run in runs
    ]
    charts = [
        draw(
            "speed", "Throughput", "samples of all ranks a second", step_series(runs, "samples_per_second"), zero=True
        ),
        draw("rest", "Time not in computation", "% of a step, mean over the ranks", rest, zero=True),
    ]
    return [chart for chart in charts if chart is not None]


def time_unit(runs: Sequence[Run]) -> tuple[str, float]:
    """The unit in which the longest run is a handy number, and its seconds."""
    longest = max((float(np.nanmax(run.elapsed)) for run in runs if np.isfinite(run.elapsed).any()), default=0.0)
    return ("hours", 3600.0) if longest > 7200 else ("minutes", 60.0) if longest > 180 else ("seconds", 1.0)
