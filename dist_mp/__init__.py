"""Distributed data-parallel training of recurrent models on MPI, in 16 bits with FP32 master weights.

The command line is ``dist-mp``. From Python: `dist_mp.fit` trains any Keras model on all ranks, and
`dist_mp.DistributedOptimizer` averages gradients in a loop of one's own.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "fit": "dist_mp.train.fit",
    "DistributedOptimizer": "dist_mp.train.optimizer",
    "World": "dist_mp.comm.world",
    "LSTM": "dist_mp.model.lstm",
    "GRU": "dist_mp.model.gru",
}
"""Where the names of the Python API live; importing dist_mp itself loads neither TensorFlow nor MPI."""


def __getattr__(name: str) -> Any:
    """A name of the Python API, imported when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'dist_mp' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
