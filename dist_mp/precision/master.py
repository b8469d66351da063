"""FP32 master weights: updated by a Keras optimizer, rounded once to the 16-bit working copy.

Micikevicius et al. (ICLR 2018, section 3.1): an update below half a unit in the last place of a 16-bit weight is lost,
and so is one that is 2048 times smaller than the weight; added to an FP32 master it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig) -> keras.Optimizer:
    """The Keras optimizer of the settings; its learning rate is set before each update."""
    adaptive = {"beta_1": config.beta_1, "beta_2": config.beta_2, "epsilon": config.epsilon}
    momentum = 0.9 if config.momentum is None else config.momentum
    rms_momentum = config.momentum or 0.0
    factories = {
        "sgd": lambda: keras.optimizers.SGD(0.0),
        "momentum": lambda: keras.optimizers.SGD(0.0, momentum=momentum),
        "nesterov": lambda: keras.optimizers.SGD(0.0, momentum=momentum, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.0, **adaptive),
        "adamw": lambda: keras.optimizers.AdamW(0.0, weight_decay=config.weight_decay, **adaptive),
        "rmsprop": lambda: keras.optimizers.RMSprop(0.0, rho=config.rho, momentum=rms_momentum, epsilon=config.epsilon),
        "adagrad": lambda: keras.optimizers.Adagrad(0.0, epsilon=config.epsilon),
    }
    return factories[config.name]()


class MasterWeights:
    """The FP32 weights that are trained, and the working copy that the model computes with.

    In FP32 the working variables are the masters. With `enabled` false the optimizer updates the 16-bit variables
    themselves, its slots in 16 bits too: the ablation that shows what masters are for.
    """

    def __init__(
        self,
        working: Sequence[keras.Variable],
        initial: Sequence[NDArray[np.float32]],
        config: OptimizerConfig,
        enabled: bool = True,
    ) -> None:
        """Take initial FP32 values (one array for each of `working`, equally shaped) and round them into `working`."""
        self.working = list(working)
        self.separate = enabled and any(v.dtype != "float32" for v in working)
        if self.separate:
            self.masters = [
                keras.Variable(value, dtype="float32", name=f"master_{i}") for i, value in enumerate(initial)
            ]
        else:
            self.masters = self.working
        self.load(initial)
        self.optimizer = make_optimizer(config)
        self.optimizer.build(self.masters)

    def load(self, values: Sequence[NDArray[np.float32]]) -> None:
        """Take over FP32 values, one array for each of the masters, and round them to the working copy."""
        for master, variable, value in zip(self.masters, self.working, values, strict=True):
            if self.separate:
                master.assign(value)
            variable.assign(tf.cast(value, variable.dtype))

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """Update the masters with FP32 gradients and round each once to the working copy (called in a graph)."""
        self.optimizer.learning_rate.assign(learning_rate)
        pairs = [(tf.cast(g, m.dtype), m) for g, m in zip(gradients, self.masters, strict=True)]
        self.optimizer.apply_gradients(pairs)
        if self.separate:
            for master, variable in zip(self.masters, self.working, strict=True):
                variable.assign(tf.cast(master.value, variable.dtype))

    def values(self) -> list[NDArray]:
        """The masters as arrays, in the order of the variables."""
        return [np.asarray(m) for m in self.masters]
