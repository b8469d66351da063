"""From settings to a task, with initial weights that are the same for every precision and on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp.config import (
    ClassifierModel,
    Config,
    ConvolutionalModel,
    DetectorModel,
    DisruptionModel,
    GanModel,
    LanguageModel,
    PythonModel,
    TranslationModel,
)
from dist_mp.data.base import DataSpec
from dist_mp.model.base import Task
from dist_mp.model.classifier import ClassifierTask
from dist_mp.model.convolutional import ConvolutionalTask
from dist_mp.model.detector import DetectorTask
from dist_mp.model.disruption import DisruptionTask
from dist_mp.model.gan import GanTask
from dist_mp.model.language import LanguageTask
from dist_mp.model.translation import TranslationTask
from dist_mp.model.user import UserTask


def build_task(config: Config, spec: DataSpec, compute_dtype: str) -> Task:
    """The task of `config.model` for data shaped as `spec`, all variables in `compute_dtype`.

    `compute_dtype` is float16, bfloat16, float32 or float64. The variables start at the values that
    :func:`initial_masters` gives, rounded once.
    """
    match config.model:
        case LanguageModel():
            return LanguageTask(config.model, spec.vocabulary, config.seed, compute_dtype)
        case DisruptionModel():
            return DisruptionTask(config.model, spec, config.seed, compute_dtype)
        case ClassifierModel():
            return ClassifierTask(config.model, spec, config.seed, compute_dtype)
        case ConvolutionalModel():
            return ConvolutionalTask(config.model, spec, config.seed, compute_dtype)
        case TranslationModel():
            return TranslationTask(config.model, spec, config.seed, compute_dtype)
        case DetectorModel():
            return DetectorTask(config.model, spec, config.seed, compute_dtype)
        case GanModel():
            return GanTask(config.model, spec, config.seed, compute_dtype)
        case PythonModel():
            return UserTask(config.model, spec, config.seed, compute_dtype)


def initial_masters(config: Config, spec: DataSpec) -> list[NDArray[np.float32]]:
    """Initial FP32 values of the task's variables, in their order: a pure function of the settings."""
    return [v.numpy() for v in build_task(config, spec, "float32").variables]


def assign_working(task: Task, masters: Sequence[NDArray[np.float32]]) -> None:
    """Round each master once into the task's variable at its place."""
    for variable, master in zip(task.variables, masters, strict=True):
        variable.assign(tf.cast(master, variable.dtype))
