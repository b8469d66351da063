"""One rank of a training job, from settings to summary."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from dist_mp import settings
from dist_mp.comm.abort import abort_on_exception, fail
from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.open import open_dataset
from dist_mp.errors import UserError
from dist_mp.log import rank_logging
from dist_mp.train.framework import import_tensorflow
from dist_mp.train.records import RecordWriter, SummaryRecord


def run(config: Config) -> int:
    """Train as one of the ranks that mpirun or srun started, or alone; returns the exit status.

    A user's mistake ends all ranks with status 2 and one line; any other exception ends them with its traceback.
    """
    world = World.open()
    abort_on_exception(world)
    with world:
        try:
            _train(world, config)
        except UserError as error:
            fail(world, error)
    return 0


def _train(world: World, config: Config) -> None:
    begin = time.perf_counter()
    settings.resolve_batch(config, world.size)
    world.watch(config.exchange.timeout_seconds)
    # TensorFlow takes seconds to import and fixes its threads when first used.
    dataset = open_dataset(config)
    import_tensorflow(config.threads, world.local_rank)

    from dist_mp.train.assemble import assemble, header
    from dist_mp.train.loop import Trainer
    from dist_mp.train.progress import ProgressDisplay, make_console, print_header, print_summary
    from dist_mp.train.watchers import check_watch, open_sinks, start_record

    check_watch(config.watch, config.name)
    parts = assemble(world, config, dataset)
    folder = make_run_folder(world, config)
    rank_logging(folder, world.rank)
    console = make_console() if world.rank == 0 else None
    facts = header(parts)
    print_header(console, facts | {"run folder": str(folder), "host": platform.node()})
    if parts.trace is not None:
        world.barrier()
        parts.trace.open(folder / "timeline", world.rank)
    sinks = open_sinks(world, config.watch, folder)
    with RecordWriter(folder / "metrics.jsonl" if world.rank == 0 else None, sinks) as records:
        records.write(start_record(parts, facts))
        with ProgressDisplay(console, config.train.epochs, config.watch) as display:
            summary = Trainer(parts, records, display).run(str(folder), begin)
        records.write(summary)
    parts.allreduce.close()
    if parts.trace is not None:
        parts.trace.close()
    if world.rank == 0:
        write_summary(folder, summary)
    print_summary(console, summary)


def make_run_folder(world: World, config: Config) -> Path:
    """Make a new folder for this run on rank 0, write the settings into it, and tell all ranks its name.

    Raises:
        UserError: the folder cannot be made or written.
    """
    answer: Path | str = ""
    if world.rank == 0:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        try:
            answer = _new_folder(Path(config.run_folder), f"{config.name}-{stamp}")
            (answer / "config.yaml").write_text(settings.dump(config), encoding="utf-8")
        except OSError as error:
            answer = f"run_folder {config.run_folder}: cannot write there ({error.strerror}); name another"
    answer = world.broadcast(answer)
    if isinstance(answer, str):
        raise UserError(answer)
    return answer


def _new_folder(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1000):
        folder = parent / (name if number == 0 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        (folder / "logs").mkdir()
        return folder
    raise OSError(None, "a thousand folders of this name exist")


def write_summary(folder: Path, summary: SummaryRecord) -> None:
    """Write `summary.json` whole or not at all."""
    partial = folder / "summary.json.partial"
    partial.write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / "summary.json")
