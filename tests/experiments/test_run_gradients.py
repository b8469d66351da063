"""Gradients of a training run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = """
import sys
import numpy as np
from dist_mp import settings
from dist_mp.experiments.run_gradients import gradients_of_run

words = ["data.shots=24", "model.units=8", "model.layers=1", "train.batch_size=4", "schedule.base=0.05"]
results = {}
scale = ["loss_scale.mode=constant", "loss_scale.initial=128"]
for precision, steps in (("fp32", 1), ("fp32", 4), ("fp16", 1)):
    config = settings.load("configs/quickstart.yaml", [*words, f"precision={precision}", *scale])
    for path, gradient in gradients_of_run(config, steps).items():
        results[f"{precision}-{steps}-{path}"] = gradient
np.savez(sys.argv[1], **results)
"""


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    """By precision and steps, in a process of its own."""
    file = tmp_path_factory.mktemp("gradients") / "gradients.npz"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file)], capture_output=True, text=True, timeout=200, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    runs: dict[str, dict[str, np.ndarray]] = {}
    with np.load(file) as arrays:
        for key in arrays:
            precision, steps, path = key.split("-", 2)
            runs.setdefault(f"{precision}-{steps}", {})[path] = arrays[key]
    return runs


def test_every_variable_has_a_finite_gradient_that_training_changes(
    gradients: dict[str, dict[str, np.ndarray]],
) -> None:
    first, later = gradients["fp32-1"], gradients["fp32-4"]
    assert first.keys() == later.keys() and len(first) > 4
    for path in first:
        assert np.isfinite(first[path]).all() and first[path].dtype == np.float32
    assert any(np.abs(first[path] - later[path]).max() > 1e-6 for path in first)


def test_loss_scale_is_taken_out(gradients: dict[str, dict[str, np.ndarray]]) -> None:
    full, half = gradients["fp32-1"], gradients["fp16-1"]
    for path in full:
        size = np.abs(full[path]).max()
        np.testing.assert_allclose(half[path], full[path], atol=0.02 * size + 1e-5, err_msg=path)
