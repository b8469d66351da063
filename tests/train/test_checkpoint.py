"""Checkpoints in the background: which are kept, and what a disk without room costs."""

from __future__ import annotations

import logging
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dist_mp.config import CheckpointConfig
from dist_mp.errors import UserError
from dist_mp.train.checkpoint_files import list_checkpoints, newest_checkpoint
from tests.train.test_checkpoint_files import manifest


def snapshot(rank: int, size: int, step: int, numbers: int = 10, **more: Any) -> Any:
    """What a rank writes: its own piece of the masters, and a file of its own."""
    from dist_mp.train.state import Snapshot

    files = {
        f"masters-{rank:05d}-of-{size:05d}.safetensors": {f"w{rank}": np.full(numbers, step + rank, np.float32)},
        f"rank-{rank:05d}.safetensors": {"state": np.full(3, rank, np.float32)},
    }
    return Snapshot(files, manifest(step, ranks=size, **more))


@pytest.mark.mpi(ranks=[1, 3], timeout=90)
def test_checkpoints_of_several_ranks(tmp_path: Path) -> None:
    """Kept are the newest two and the best one; the pieces of all ranks are there; training is not held up."""
    from dist_mp.comm.world import World
    from dist_mp.train import checkpoint
    from dist_mp.train.checkpoint import Checkpointer

    with World.open() as world:
        if world.rank == 0:
            (tmp_path / "checkpoints").mkdir()
        world.barrier()
        writer = Checkpointer(world, CheckpointConfig(keep=2, keep_best=1), tmp_path)
        writer.metric = "auc"
        for step, auc in enumerate([0.6, 0.9, None, 0.9, 0.7, None, float("nan"), 0.5], 1):
            metrics = {} if auc is None else {"auc": auc, "loss": -auc}
            writer.save(snapshot(world.rank, world.size, step, metric=auc, metrics=metrics))
        writer.finish()
        world.barrier()
        assert [path.name for path in list_checkpoints(tmp_path)] == [f"step-0000000{i}" for i in (8, 7, 2)]
        newest = newest_checkpoint(tmp_path)
        for rank in range(world.size):
            np.testing.assert_array_equal(newest.masters()[f"w{rank}"], np.full(10, 8 + rank))
            np.testing.assert_array_equal(newest.tensors(f"rank-{rank:05d}")["state"], np.full(3, rank))
        world.barrier()
        refuses_to_wait(world, writer, checkpoint)
        world.barrier()
        full_disk(world, writer, tmp_path)


def refuses_to_wait(world: Any, writer: Any, module: Any) -> None:
    """`save` comes back while the last rank still writes, and the checkpoint is there once it is settled."""
    go, real = threading.Event(), module.write_tensors

    def slow(path: Path, tensors: Any) -> Any:
        if world.rank == world.size - 1:
            assert go.wait(30)
        return real(path, tensors)

    module.write_tensors = slow
    try:
        writer.save(snapshot(world.rank, world.size, 9))
        if world.rank == world.size - 1:
            assert not writer.written
            go.set()
        while not writer.written:
            time.sleep(0.01)
        writer.settle()
        writer.finish()
        assert not writer.written, "nothing is under way any more"
    finally:
        module.write_tensors = real


def full_disk(world: Any, writer: Any, folder: Path) -> None:
    """The last rank has no room: one warning, nothing lost, the next one is written again; at the end it is an error.

    A limit on the size of files stands for the full disk; the system answers EFBIG.
    """
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dist_mp").addHandler(handler)
    before = [path.name for path in list_checkpoints(folder)]
    last = world.rank == world.size - 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if last:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    writer.save(snapshot(world.rank, world.size, 11, numbers=100_000))
    writer.settle()
    world.barrier()
    step_11 = folder / "checkpoints" / "step-00000011"
    line = f"{step_11}: the checkpoint cannot be written: File too large"
    assert said == ([f"{line}; training goes on, the checkpoints before it are as they were"] if not world.rank else [])
    assert [path.name for path in list_checkpoints(folder)] == before
    assert not list((folder / "checkpoints").glob(".*"))
    world.barrier()
    writer.save(snapshot(world.rank, world.size, 12))
    writer.finish()
    assert newest_checkpoint(folder).manifest.step == 12
    world.barrier()
    writer.save(snapshot(world.rank, world.size, 13, numbers=100_000))
    with pytest.raises(UserError, match=r"step-00000013: the checkpoint cannot be written: File too large; the check"):
        writer.finish()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert newest_checkpoint(folder).manifest.step == 12
    logging.getLogger("dist_mp").removeHandler(handler)
