"""The folder of a run: made anew, or one that is continued; locked while a run writes to it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_mp import settings
from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.train.checkpoint_files import (
    FOLDER,
    Checkpoint,
    list_checkpoints,
    newest_checkpoint,
    tidy_checkpoints,
)

LOCK = "lock"
FIXED = (
    "seed", "precision", "master_weights", "data", "model", "optimizer.name",
)  # fmt: skip
"""Settings that a checkpoint is tied to: another one would train something else."""
FREE = (
    "data.path",
    "model.dropout",
    "model.recompute",
    "model.softmax",
    "model.softmax_block",
    "model.softmax_samples",
)
"""Exceptions from these."""


@dataclass(frozen=True)
class RunRequest:
    """Which folder a run shall have; by default a new one."""

    folder: Path | None = None
    """Continue this run."""
    new_is_fine: bool = False
    """Begin a run in `folder` where there is none yet (`--into`)."""


@dataclass
class RunFolder:
    """The folder of a run that this process has the lock of."""

    path: Path
    checkpoint: Checkpoint | None = None
    """Where the run goes on; None for a run that begins."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about it, a line each."""
    lock: int | None = None
    """Descriptor of the locked file; closing it, or the end of the process, gives the lock back."""

    def release(self) -> None:
        """Give the lock back."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def open_run_folder(config: Config, request: RunRequest) -> RunFolder:
    """Make or lock the folder of a run and find where it goes on; for rank 0.

    Raises:
        UserError: it cannot be written, another run has it, there is nothing to continue, all checkpoints are damaged,
            or settings have changed that must not.
    """
    if request.folder is None:
        return _new_run(config)
    path = request.folder
    if not path.is_dir():
        if not request.new_is_fine:
            raise UserError(f"{path}: no such run folder")
        return _begin(config, path)
    with _written(path):
        lock = lock_folder(path)
    try:
        return _continue(config, request, path, lock)
    except UserError:
        os.close(lock)
        raise


def _continue(config: Config, request: RunRequest, path: Path, lock: int) -> RunFolder:
    with _written(path):
        tidy_checkpoints(path / FOLDER)
    if not list_checkpoints(path) and request.new_is_fine:
        run = _begin(config, path, lock)
        run.notes.append("there is no checkpoint yet; the run begins")
        return run
    notes: list[str] = []
    checkpoint = newest_checkpoint(path, notes.append)
    changed = check_changes(checkpoint, config)
    if changed:
        notes.append(f"settings changed since the checkpoint: {', '.join(changed)}")
    with _written(path):
        drop_torn_line(path / "metrics.jsonl")
        (path / "summary.json").unlink(missing_ok=True)
        write_text(path / "config.yaml", settings.dump(config))
    return RunFolder(path, checkpoint, notes, lock)


def _new_run(config: Config) -> RunFolder:
    parent = Path(config.run_folder)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    with _written(parent, "run_folder "):
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1000):
            path = parent / (f"{config.name}-{stamp}" + (f"-{number}" if number else ""))
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return _begin(config, path)
        raise OSError(errno.EEXIST, "a thousand folders of this name exist")


def _begin(config: Config, path: Path, lock: int | None = None) -> RunFolder:
    with _written(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = lock or lock_folder(path)
        (path / "logs").mkdir(exist_ok=True)
        checkpoints = path / FOLDER
        if config.checkpoint.folder is not None and not checkpoints.is_symlink():
            elsewhere = (Path(config.checkpoint.folder) / path.name).absolute()
            if elsewhere.exists() and any(elsewhere.iterdir()):
                raise UserError(f"checkpoint.folder: {elsewhere} is not empty; name another folder")
            elsewhere.mkdir(parents=True, exist_ok=True)
            checkpoints.symlink_to(elsewhere)
        checkpoints.mkdir(exist_ok=True)
        drop_torn_line(path / "metrics.jsonl")
        write_text(path / "config.yaml", settings.dump(config))
    return RunFolder(path, lock=lock)


@contextlib.contextmanager
def _written(path: Path, setting: str = "") -> Any:
    """Turn what the system says of a folder that cannot be written into a line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{setting}{path}: cannot write there ({error.strerror}); name another") from error


def lock_folder(path: Path) -> int:
    """Keep other runs out of a folder until the descriptor that is returned is closed, or this process ends.

    Raises:
        UserError: another run writes to it.
    """
    file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return file  # a file system without locks
        who = " ".join(os.read(file, 200).decode(errors="replace").split()) or "unknown"
        os.close(file)
        raise UserError(f"{path}: another run writes to it ({who}); wait for its end or name another") from error
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    return file


def check_changes(checkpoint: Checkpoint, config: Config) -> list[str]:
    """Settings that differ from those of a checkpoint, as ``key old -> new``.

    Raises:
        UserError: one of them must not change.
    """
    old, new = (_flat(one.model_dump()) for one in (checkpoint.config(), config))
    keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    changed = {key: f"{key} {_shown(old.get(key))} -> {_shown(new.get(key))}" for key in keys}
    wrong = [key for key in keys if key not in FREE and any(f"{key}.".startswith(f"{fixed}.") for fixed in FIXED)]
    if wrong:
        raise UserError(
            f"{checkpoint.folder}: settings have changed that a run is tied to: "
            f"{', '.join(changed[key] for key in wrong)}; put them back, or begin a new run"
        )
    return list(changed.values())


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def drop_torn_line(path: Path) -> None:
    """Cut off a last line that a killed run left unfinished."""
    if path.exists():
        with open(path, "rb+") as file:
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
