"""Checkpoints of :func:`dist_mp.fit`: after each epoch, on rank 0, in the files of dist_mp's own runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dist_mp import __version__
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.train.checkpoint_files import (
    FOLDER,
    Manifest,
    begin_checkpoint,
    finish_checkpoint,
    list_checkpoints,
    newest_checkpoint,
    remove_checkpoint,
    tidy_checkpoints,
    write_manifest,
    write_tensors,
)

KEPT = 2


class FitCheckpoints(keras.callbacks.Callback):
    """Writes the state of model and optimizer after each epoch; restores the newest one."""

    def __init__(self, folder: Path, world: World, optimizer: keras.Optimizer, steps: int) -> None:
        """Write to ``folder/checkpoints``; `steps` is the length of an epoch."""
        super().__init__()
        self._folder, self._world, self._optimizer, self._steps = folder, world, optimizer, steps

    def restore(self, model: keras.Model) -> int:
        """Put the newest checkpoint into model and optimizer; returns the epochs that are over. Collective.

        Raises:
            UserError: the folder cannot be written, or holds another model's state.
        """
        variables = self._variables(model)
        answer: Any = None
        if self._world.rank == 0:
            try:
                answer = self._newest(list(variables), [tuple(v.shape) for v in variables.values()])
            except UserError as error:
                answer = str(error)
            except OSError as error:
                answer = f"{self._folder}: cannot write there ({error.strerror}); name another"
        answer = self._world.broadcast(answer)
        if isinstance(answer, str):
            raise UserError(answer)
        epochs, values = answer
        for variable, value in zip(variables.values(), values, strict=False):
            variable.assign(value.astype(variable.dtype))
        return epochs

    def _newest(self, names: list[str], shapes: list[tuple[int, ...]]) -> tuple[int, list[Any]]:
        (self._folder / FOLDER).mkdir(parents=True, exist_ok=True)
        tidy_checkpoints(self._folder / FOLDER)
        if not list_checkpoints(self._folder):
            return 0, []
        checkpoint = newest_checkpoint(self._folder, lambda line: print(f"dist_mp: {line}", flush=True))
        saved = checkpoint.masters()
        if [tuple(value.shape) for value in saved.values()] != shapes:
            raise UserError(f"fit: {checkpoint.folder} is of another model or optimizer; name another folder")
        return checkpoint.manifest.epoch, [saved[name] for name in saved]

    def _variables(self, model: keras.Model) -> dict[str, keras.Variable]:
        everything = [*model.variables, *self._optimizer.variables]
        return {f"{number:04d} {variable.path}": variable for number, variable in enumerate(everything)}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write a checkpoint and take away all but the newest ones."""
        if self._world.rank:
            return
        step = (epoch + 1) * self._steps
        arrays = {}
        for name, variable in self._variables(self.model).items():
            value = np.asarray(variable.numpy())
            arrays[name] = value.astype(np.float32) if value.dtype.name in ("float16", "bfloat16") else value
        try:
            folder = begin_checkpoint(self._folder / FOLDER, step)
            files = {"masters.safetensors": write_tensors(folder / "masters.safetensors", arrays)}
            write_manifest(folder, self._manifest(step, epoch + 1, logs or {}, files))
            finish_checkpoint(folder)
            for old in list_checkpoints(self._folder)[KEPT:]:
                remove_checkpoint(old)
        except OSError as error:
            print(f"dist_mp: warning: {self._folder}: no checkpoint: {error.strerror}", flush=True)

    def _manifest(self, step: int, epochs: int, logs: dict[str, Any], files: dict[str, Any]) -> Manifest:
        return Manifest(
            dist_mp=__version__,
            written=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            step=step,
            epoch=epochs,
            cursor=[],
            ranks=self._world.size,
            loss_sum=0.0,
            weight_sum=0.0,
            loss_scale={},
            metrics={name: float(value) for name, value in logs.items()},
            config={},
            spec={},
            files=files,
        )
