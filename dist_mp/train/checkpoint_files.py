"""Checkpoints as files: what is in one, how it gets there whole or not at all, and how it is read without MPI.

A checkpoint is a folder ``RUN/checkpoints/step-00001234`` with

- ``masters*.safetensors``: the FP32 weights that are trained, by the path of their variable;
- ``optimizer*.safetensors``: the slots of the optimizer, in its own order (``0003 NAME``);
- ``rank-00000.safetensors``, one a rank: residuals of error feedback, recurrent state, the model's own variables;
- ``manifest.json``: everything that is not an array, the size and BLAKE2b hash of each file, and its own hash.

Large files come in pieces, written by several ranks. A checkpoint is written under a name of its own, flushed to the
disk and then renamed: a folder with the right name is complete unless the disk lost or changed something, which the
hashes show.

To read the newest one of a run::

    checkpoint = newest_checkpoint(Path("runs/wlm-20260101-120000"))
    config, weights = checkpoint.config(), checkpoint.masters()
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from dist_mp.config import Config
from dist_mp.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d{8,})")
_PIECE = re.compile(r"(-\d+-of-\d+)?\.safetensors")
_UNFINISHED, _REMOVED = ".unfinished-", ".removed-"
_TYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "uint32": "U32",
          "uint8": "U8", "bool": "BOOL"}  # fmt: skip

Tensors = Mapping[str, NDArray[Any]]


class FileEntry(BaseModel):
    """A file of a checkpoint."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    blake2b: str = Field(description="BLAKE2b hash of the file, 32 bytes in hex")


class Best(BaseModel):
    """The best evaluation so far, for early stopping and for what is kept."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    value: float | None = Field(None, description="best value of train.metric")
    epoch: int = Field(0, description="its epoch")
    waited: int = Field(0, description="evaluations since then")


class Manifest(BaseModel):
    """What is not an array."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    format: int = Field(FORMAT, description="version of this layout")
    dist_mp: str = Field(description="version of dist_mp that wrote it")
    written: str = Field(description="time of writing, UTC")
    step: int = Field(description="steps so far, skipped ones included")
    epoch: int = Field(description="epochs that are over, evaluation included")
    cursor: list[tuple[int, int]] = Field(
        description="what this epoch has held so far: global rows and steps, one pair for each number of ranks"
    )
    ranks: int = Field(description="ranks that wrote it")
    loss_sum: float = Field(description="sum of this epoch's weighted losses")
    weight_sum: float = Field(description="sum of this epoch's weights")
    loss_scale: dict[str, float] = Field(description="scale and its counters")
    metrics: dict[str, float] = Field(description="of the last evaluation")
    metric: float | None = Field(None, description="train.metric of these very weights, if they were evaluated")
    best: Best = Field(default_factory=Best)
    config: dict[str, Any] = Field(description="settings of the run")
    spec: dict[str, int] = Field(description="shapes of its data, as in dist_mp.data.base.DataSpec")
    files: dict[str, FileEntry] = Field(default_factory=dict)


class DamagedError(UserError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was looked at; :func:`open_checkpoint` makes one."""

    folder: Path
    manifest: Manifest

    def config(self) -> Config:
        """The settings that it was trained with."""
        try:
            return Config.model_validate_json(json.dumps(self.manifest.config))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = ".".join(map(str, problem["loc"]))
            raise UserError(f"{self.folder}: its setting {key} is not one of this version: {problem['msg']}") from error

    def masters(self) -> dict[str, NDArray[np.float32]]:
        """The trained weights in FP32, by the path of their variable, in the order of the model."""
        return self.tensors("masters")

    def tensors(self, kind: str) -> dict[str, NDArray[Any]]:
        """All arrays of the files of a kind: `masters`, `optimizer`, or `rank-00000` and so on."""
        found: dict[str, NDArray[Any]] = {}
        for name in sorted(self.manifest.files):
            if _PIECE.sub("", name) == kind:
                found |= read_tensors(self.folder / name)
        return found


def checkpoint_name(step: int) -> str:
    """Name of the folder of a checkpoint."""
    return f"step-{step:08d}"


def list_checkpoints(run: Path) -> list[Path]:
    """Folders of a run's checkpoints, the newest first; not yet looked into."""
    folder = run / FOLDER
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def newest_checkpoint(run: Path, warn: Callable[[str], None] = lambda line: None) -> Checkpoint:
    """The newest checkpoint of a run whose files are what was written; each damaged one is named to `warn`.

    Raises:
        UserError: there is none.
    """
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder")
    found = list_checkpoints(run)
    for folder in found:
        try:
            return open_checkpoint(folder)
        except DamagedError as error:
            warn(f"{error}; the one before it is taken")
    if found:
        raise UserError(f"{run}: all {len(found)} checkpoints are damaged, the newest is {found[0].name}")
    raise UserError(f"{run}: holds no checkpoint")


def best_checkpoint(run: Path, warn: Callable[[str], None] = lambda line: None) -> Checkpoint:
    """The checkpoint of a run with the best `train.metric`, or the newest one where none was evaluated."""
    newest = newest_checkpoint(run, warn)
    best = newest.manifest.best.value
    for folder in reversed(list_checkpoints(run)):
        try:
            found = open_checkpoint(folder)
        except DamagedError:
            continue
        if found.manifest.metric is not None and found.manifest.metric == best:
            return found
    return newest


def open_checkpoint(folder: Path, *, check_files: bool = True) -> Checkpoint:
    """Read a checkpoint's manifest and, if asked to, compare the hash of each of its files.

    Raises:
        DamagedError: the checkpoint is not what was written; the message names the file.
        UserError: it was written by a newer version of dist_mp.
    """
    manifest = _read_manifest(folder / MANIFEST)
    if check_files:
        for name, entry in manifest.files.items():
            path = folder / name
            try:
                if path.stat().st_size != entry.bytes:
                    raise DamagedError(f"{path} is damaged: {path.stat().st_size} bytes, {entry.bytes} were written")
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, _hash)
            except OSError as error:
                raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
            if digest.hexdigest() != entry.blake2b:
                raise DamagedError(f"{path} is damaged: its hash is not the one that was written")
    return Checkpoint(folder, manifest)


def _hash() -> Any:
    return hashlib.blake2b(digest_size=32)


def _read_manifest(path: Path) -> Manifest:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
    head, _, body = raw.partition(b"\n")
    if head != _manifest_head(body):
        raise DamagedError(f"{path} is damaged: its hash is not the one that was written")
    version = json.loads(raw)["format"]
    if version != FORMAT:
        raise UserError(f"{path}: format {version}; this version of dist_mp reads format {FORMAT}")
    return Manifest.model_validate_json(b"{" + body)


def _manifest_head(body: bytes) -> bytes:
    digest = _hash()
    digest.update(body)
    return b'{"blake2b": "%s",' % digest.hexdigest().encode()


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a safetensors file, in the order in which they were written."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.offset_keys()}
    except (SafetensorError, OSError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error


def write_tensors(path: Path, tensors: Tensors) -> FileEntry:
    """Write arrays as a safetensors file and flush it to the disk.

    Written here and not by the library, which copies all arrays first and does not let other threads run meanwhile.
    """
    header: dict[str, Any] = {}
    begin = 0
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    for name, array in arrays.items():
        end = begin + array.nbytes
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    chunks = [len(text).to_bytes(8, "little"), text, *(a.reshape(-1).view(np.uint8).data for a in arrays.values())]
    return _write(path, chunks)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint and flush it to the disk."""
    body = manifest.model_dump_json(indent=1).encode().removeprefix(b"{") + b"\n"
    body = body.lstrip(b"\n")
    _write(folder / MANIFEST, [_manifest_head(body), b"\n", body])


def _write(path: Path, chunks: Iterable[Any]) -> FileEntry:
    digest, size = _hash(), 0
    with open(path, "wb", buffering=0) as file:
        for chunk in chunks:
            left = memoryview(chunk)
            digest.update(left)
            while len(left):
                written = file.write(left[: 1 << 26])
                left, size = left[written:], size + written
        os.fsync(file.fileno())
    return FileEntry(bytes=size, blake2b=digest.hexdigest())


def begin_checkpoint(checkpoints: Path, step: int) -> Path:
    """Make the folder that a checkpoint is written in before it gets its name; what was left of an old one goes."""
    folder = checkpoints / (_UNFINISHED + checkpoint_name(step))
    _remove(folder)
    folder.mkdir(parents=True)
    return folder


def finish_checkpoint(unfinished: Path) -> Path:
    """Flush the folder and give it its name: from here on the checkpoint is there."""
    folder = unfinished.with_name(unfinished.name.removeprefix(_UNFINISHED))
    _sync_folder(unfinished)
    old = folder.with_name(_REMOVED + folder.name)
    if folder.exists():  # of the same step, from before the run was resumed
        _remove(old)
        folder.rename(old)
    unfinished.rename(folder)
    _sync_folder(folder.parent)
    _remove(old)
    return folder


def remove_checkpoint(folder: Path) -> None:
    """Take a checkpoint away. It loses its name first, so that one that is half gone is never looked at."""
    doomed = folder.with_name(_REMOVED + folder.name)
    _remove(doomed)
    folder.rename(doomed)
    _remove(doomed)


def tidy_checkpoints(checkpoints: Path) -> None:
    """Put right what a run that was killed left behind; only for the one that has the run's lock."""
    for path in checkpoints.glob(_UNFINISHED + "*"):
        _remove(path)
    for path in checkpoints.glob(_REMOVED + "*"):
        folder = path.with_name(path.name.removeprefix(_REMOVED))
        if folder.exists() or not (path / MANIFEST).exists():
            _remove(path)
        else:  # its successor was about to take the name
            path.rename(folder)


def _remove(folder: Path) -> None:
    (folder / MANIFEST).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
