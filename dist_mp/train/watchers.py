"""What lets others watch a run: its first record, and the outlets that get a copy of every record."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from dist_mp.comm.world import World
from dist_mp.config import WatchConfig
from dist_mp.train.environment import command_line, hardware, software, variables, working_folder
from dist_mp.train.loop import Parts
from dist_mp.train.prometheus import PrometheusSink, prometheus_path
from dist_mp.train.records import RecordSink, StartRecord
from dist_mp.train.tensorboard import TensorBoardSink


def start_record(parts: Parts, header: dict[str, str], step: int = 0) -> StartRecord:
    """What a run is and what it runs on; all ranks call it.

    Args:
        parts: the run.
        header: what its header says, a fact a name.
        step: steps that were done before this start.
    """
    import tensorflow as tf

    world, train = parts.world, parts.config.train
    hosts = world.allgather(platform.node())
    rows = parts.global_rows
    steps = parts.dataset.train.steps(0, rows) * train.epochs
    return StartRecord(
        step=step,
        expected_steps=steps if train.max_steps is None else min(steps, train.max_steps),
        epochs=train.epochs,
        ranks=world.size,
        hosts=hosts,
        process=os.getpid(),
        command=command_line(),
        folder=working_folder(),
        run=header,
        software=software(world.library),
        hardware=hardware(len(tf.config.list_physical_devices("GPU"))),
        variables=variables(os.environ),
    )


def open_sinks(world: World, watch: WatchConfig, folder: Path) -> list[RecordSink]:
    """The outlets that `watch` asks for, on rank 0; none on the others.

    Args:
        world: the ranks.
        watch: settings.
        folder: the run folder.
    """
    sinks: list[RecordSink] = []
    if world.rank == 0 and watch.tensorboard:
        sinks.append(TensorBoardSink(folder / "tensorboard"))
    if world.rank == 0 and watch.prometheus:
        sinks.append(PrometheusSink(prometheus_path(watch.prometheus, folder.name), folder.name))
    return sinks
