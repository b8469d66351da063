"""Writes checkpoints while training goes on: a copy on the step, the disk in the background, old ones taken away."""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dist_mp.comm.world import World
from dist_mp.config import CheckpointConfig
from dist_mp.errors import UserError
from dist_mp.train.best import is_better
from dist_mp.train.checkpoint_files import (
    DamagedError,
    FileEntry,
    begin_checkpoint,
    checkpoint_name,
    finish_checkpoint,
    list_checkpoints,
    open_checkpoint,
    remove_checkpoint,
    write_manifest,
    write_tensors,
)
from dist_mp.train.state import Snapshot

LOG = logging.getLogger(__name__)
SEEN_SECONDS = 60.0
"""How long a file that another node wrote may take to be seen on rank 0's."""


class Checkpointer:
    """The checkpoints of a run, seen from one rank. All ranks call the same methods in the same order.

    One checkpoint is under way at a time. Its life: :meth:`save` begins it, each rank's thread writes that rank's
    files; when the control word says that all have :attr:`written` theirs, :meth:`settle` gathers hashes, and a thread
    of rank 0 writes the manifest, gives the folder its name and takes old ones away.

    A checkpoint that cannot be written (a full disk) costs a warning, not the run; :meth:`finish`, at the end, raises.
    """

    def __init__(self, world: World, settings: CheckpointConfig, run: Path) -> None:
        """Write to ``run/checkpoints``, which exists, by the rules of `settings`."""
        self._world, self._settings, self._run = world, settings, run
        self._snapshot: Snapshot | None = None
        self._folder = Path()
        self._thread: threading.Thread | None = None
        self._entries: dict[str, FileEntry] = {}
        self._error = ""
        """Why a part of the checkpoint under way could not be written; on rank 0 of the one before as well."""
        self._last_save = time.monotonic()
        self.metric = ""
        """The metric that `keep_best` goes by; set by the training loop when it is known."""

    @property
    def written(self) -> bool:
        """Whether this rank's part of the checkpoint under way is written, or given up."""
        return self._snapshot is not None and (self._thread is None or not self._thread.is_alive())

    @property
    def by_time(self) -> bool:
        """Whether the last checkpoint is older than the settings want."""
        minutes = self._settings.every_minutes
        return bool(minutes) and time.monotonic() - self._last_save >= 60.0 * minutes

    def by_step(self, step: int) -> bool:
        """Whether the settings want a checkpoint after so many steps."""
        every = self._settings.every_steps
        return bool(every) and step % every == 0

    def by_epoch(self, epochs: int, *, better: bool) -> bool:
        """Whether the settings want one after so many epochs, the last of which was evaluated the best or not."""
        every = self._settings.every_epochs
        return (bool(every) and epochs % every == 0) or (better and bool(self._settings.keep_best))

    def save(self, snapshot: Snapshot) -> None:
        """Begin a checkpoint; waits for the one before, if that is still under way. Collective."""
        self._conclude()
        self._last_save = time.monotonic()
        problem = ""
        if self._world.rank == 0:
            try:
                begin_checkpoint(self._run / "checkpoints", snapshot.manifest.step)
            except OSError as error:
                problem = self._cannot(snapshot, error)
        self._error = self._world.broadcast(problem)
        if self._error:
            self._warn(self._error)
            return
        self._snapshot, self._entries = snapshot, {}
        self._folder = self._run / "checkpoints" / f".unfinished-{checkpoint_name(snapshot.manifest.step)}"
        self._start(lambda: self._write(snapshot))

    def settle(self) -> None:
        """All ranks have written their parts: complete the checkpoint, or give it up if one could not. Collective."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        self._join()
        reports = self._world.allgather((self._entries, self._error))
        self._snapshot = None
        problem = next((error for _, error in reports if error), "")
        if problem:
            self._error = problem
            self._warn(problem)
            if self._world.rank == 0:
                shutil.rmtree(self._folder, ignore_errors=True)
            return
        if self._world.rank == 0:
            files = {name: entry for entries, _ in reports for name, entry in sorted(entries.items())}
            self._start(lambda: self._complete(snapshot, files))

    def finish(self) -> None:
        """Wait for the checkpoint under way. Collective.

        Raises:
            UserError: it could not be written.
        """
        self._conclude()
        problem = self._world.broadcast(self._error)
        if problem:
            raise UserError(f"{problem}; the checkpoints before it are as they were")

    def _conclude(self) -> None:
        self.settle()
        self._join()

    def _start(self, work: Callable[[], None]) -> None:
        # No daemon: an interpreter that ends waits for what is half written.
        self._thread = threading.Thread(target=work, name="dist-mp-checkpoint", daemon=False)
        self._thread.start()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self._folder.mkdir(exist_ok=True)  # another node may not see yet what rank 0 made
            for name, tensors in snapshot.files.items():
                self._entries[name] = write_tensors(self._folder / name, tensors)
        except OSError as error:
            self._error = self._cannot(snapshot, error)

    def _complete(self, snapshot: Snapshot, files: dict[str, FileEntry]) -> None:
        try:
            for name in files:
                self._wait_for(self._folder / name)
            write_manifest(self._folder, snapshot.manifest.model_copy(update={"files": files}))
            folder = finish_checkpoint(self._folder)
            size, begun = sum(entry.bytes for entry in files.values()), self._last_save
            LOG.info(
                "checkpoint %s: %d bytes, copied in %.3f s, on the disk %.3f s later",
                *(folder, size, snapshot.seconds, time.monotonic() - begun),
            )
            self._prune()
        except OSError as error:
            self._error = self._cannot(snapshot, error)
            self._warn(self._error)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for(self, path: Path) -> None:
        """Another node's file may take a moment to be seen here; without a file system in common it never is."""
        end = time.monotonic() + SEEN_SECONDS
        while not path.exists():
            if time.monotonic() > end:
                raise OSError(f"{path.name} is not there: the nodes need a run folder that all of them see")
            time.sleep(0.1)

    def _prune(self) -> None:
        """Take away what is neither among the newest nor among the best."""
        found = list_checkpoints(self._run)
        kept = set(found[: self._settings.keep])
        best: list[tuple[float, Path]] = []
        for folder in found:
            try:
                manifest = open_checkpoint(folder, check_files=False).manifest
            except DamagedError:
                continue
            # By the metric of today, which may be another one than that of the day.
            value = math.nan if manifest.metric is None else manifest.metrics.get(self.metric, math.nan)
            if not math.isnan(value):
                best.append((value, folder))
        for _ in range(min(self._settings.keep_best, len(best))):
            chosen = best[-1]
            for other in reversed(best):  # of equal ones the oldest stays: it was the better one when it came
                chosen = other if is_better(self.metric, other[0], chosen[0]) else chosen
            kept.add(chosen[1])
            best.remove(chosen)
        for folder in found:
            if folder not in kept:
                remove_checkpoint(folder)

    def _cannot(self, snapshot: Snapshot, error: OSError) -> str:
        where = self._run / "checkpoints" / checkpoint_name(snapshot.manifest.step)
        return f"{where}: the checkpoint cannot be written: {error.strerror or error}"

    def _warn(self, problem: str) -> None:
        if self._world.rank == 0:
            LOG.warning("%s; training goes on, the checkpoints before it are as they were", problem)
