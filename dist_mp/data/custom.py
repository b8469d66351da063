"""A data set from the user's own module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from dist_mp.config import Config
from dist_mp.data.base import Dataset
from dist_mp.errors import UserError


def custom_dataset(config: Config, factory: str) -> Dataset:
    """What the function `factory` gives for the settings: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION.

    Every rank calls it and must get the same data. What it raises is the user's and is shown with its traceback.
    """
    where, _, name = factory.rpartition(":")
    if not where or not name.isidentifier():
        raise UserError(f"data.factory: {factory!r}; name FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_package(where)
    make: Callable[[Config], object] | None = getattr(module, name, None)
    if not callable(make):
        raise UserError(f"data.factory: {where} has no function {name!r}")
    dataset = make(config)
    if not isinstance(dataset, Dataset):
        kind = type(dataset).__name__
        raise UserError(f"data.factory: {factory} gave {kind}, not a dist_mp.data.base.Dataset")
    spec = dataset.spec
    missing = {
        "language": "" if spec.vocabulary and not spec.classes else "a vocabulary and a target at every step",
        "disruption": "" if spec.scalars or spec.profiles else "scalars or profiles",
        "gan": "" if spec.width else "images (width)",
        "translation": "" if spec.vocabulary and spec.target_vocabulary else "vocabulary and target_vocabulary",
    }.get(
        config.model.kind,
        "" if spec.classes and (spec.vocabulary or spec.channels) else "classes, and channels or words",
    )
    if missing:
        raise UserError(f"data.factory: model.kind {config.model.kind} needs {missing}; {factory} gave {spec}")
    return dataset


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"data.factory: no file {path}")
    name = f"dist_mp_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UserError(f"data.factory: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Classes of the module find it by its name, when they are pickled or when their annotations are read.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise UserError(f"data.factory: no module {name!r} on Python's path (PYTHONPATH)") from error
