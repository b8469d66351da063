"""The factor on the loss that keeps small 16-bit gradients above zero.

Micikevicius et al. (ICLR 2018, section 3.2) scale the loss by a constant and skip steps whose gradients overflow. The
dynamic rule is the one that frameworks agreed on later: halve on an overflow, double after 2000 clean steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from dist_mp.config import LossScaleConfig


class LossScale:
    """The scale and its counters, as variables that live in the graph.

    All ranks call :meth:`update` with the same flag, taken from the averaged gradient whose bits they share, so that
    the scale is the same everywhere without a message of its own.
    """

    def __init__(self, config: LossScaleConfig, precision: str) -> None:
        """Start at the configured scale; `auto` is dynamic in fp16 and the constant 1 in bf16 and fp32."""
        auto = config.mode == "auto"
        self.dynamic = config.mode == "dynamic" or (auto and precision == "fp16")
        initial = 1.0 if auto and not self.dynamic else config.initial
        self._config = config
        self.scale = tf.Variable(initial, dtype=tf.float32, trainable=False, name="loss_scale")
        self.clean_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="clean_steps")
        self.skips_in_a_row = tf.Variable(0, dtype=tf.int64, trainable=False, name="skips_in_a_row")
        self.skipped_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="skipped_steps")
        self.applied_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="applied_steps")

    @property
    def max_skips(self) -> int:
        """Skipped steps in a row after which the run is given up."""
        return self._config.max_skips

    @property
    def at_floor(self) -> bool:
        """Whether the scale cannot fall any further (a constant scale never can)."""
        return not self.dynamic or float(self.scale) <= self._config.floor

    def state(self) -> dict[str, float]:
        """The scale and its counters, for a checkpoint."""
        return {name: float(variable) for name, variable in self._variables().items()}

    def load(self, state: Mapping[str, float]) -> None:
        """Take over those of a checkpoint; what `state` lacks stays."""
        for name, variable in self._variables().items():
            if name in state:
                variable.assign(variable.dtype.as_numpy_dtype(state[name]))

    def _variables(self) -> dict[str, tf.Variable]:
        return {
            "scale": self.scale,
            "clean_steps": self.clean_steps,
            "skips_in_a_row": self.skips_in_a_row,
            "skipped_steps": self.skipped_steps,
            "applied_steps": self.applied_steps,
        }

    def update(self, finite: tf.Tensor) -> None:
        """Count a step and move the scale; `finite` is a scalar bool, false where the step was skipped."""
        good = tf.cast(finite, tf.int64)
        self.applied_steps.assign_add(good)
        self.skipped_steps.assign_add(1 - good)
        self.skips_in_a_row.assign((self.skips_in_a_row + 1) * (1 - good))
        if not self.dynamic:
            return
        clean = (self.clean_steps + 1) * good
        grows = clean >= self._config.growth_interval
        grown = tf.minimum(self.scale * self._config.factor, tf.constant(self._config.cap, tf.float32))
        shrunk = tf.maximum(self.scale / self._config.factor, tf.constant(self._config.floor, tf.float32))
        self.scale.assign(tf.where(finite, tf.where(grows, grown, self.scale), shrunk))
        self.clean_steps.assign(tf.where(grows, tf.zeros_like(clean), clean))
