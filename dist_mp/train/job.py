"""One rank of a training job, from settings to summary."""

from __future__ import annotations

import errno
import platform
import signal
import time
from pathlib import Path

from dist_mp import settings
from dist_mp.comm.abort import abort_on_exception, fail
from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.open import open_dataset
from dist_mp.errors import EXIT_STOPPED, UserError
from dist_mp.log import rank_logging
from dist_mp.train.checkpoint_files import Best, open_checkpoint
from dist_mp.train.framework import import_tensorflow
from dist_mp.train.prometheus import check_watch
from dist_mp.train.records import RecordWriter, StopRecord, SummaryRecord
from dist_mp.train.run_folder import RunFolder, RunRequest, open_run_folder, write_text
from dist_mp.train.stopping import StopRequest

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def run(config: Config, request: RunRequest | None = None) -> int:
    """Train as one of the ranks that mpirun or srun started, or alone.

    A user's mistake ends all ranks with status 2 and one line; any other exception ends them with its traceback.

    Args:
        config: the settings.
        request: the run to continue; None for a new one.

    Returns:
        The exit status: 0, or :data:`dist_mp.errors.EXIT_STOPPED` where a signal asked to stop and the state was saved.
    """
    with StopRequest() as stop:
        world = World.open()
        abort_on_exception(world)
        with world:
            try:
                return _train(world, config, request or RunRequest(), stop)
            except UserError as error:
                fail(world, error)
    return 0


def _train(world: World, config: Config, request: RunRequest, stop: StopRequest) -> int:
    begin = time.perf_counter()
    settings.resolve_batch(config, world.size)
    world.watch(config.exchange.timeout_seconds)
    check_watch(world, config.watch, config.name)
    continued = claim(world, config, request) if request.folder is not None else None
    # TensorFlow takes seconds to import and fixes its threads when first used.
    dataset = open_dataset(config)
    import_tensorflow(config.threads, world.local_rank)

    from dist_mp.train.assemble import assemble, header
    from dist_mp.train.checkpoint import Checkpointer
    from dist_mp.train.data_state import write_data_state
    from dist_mp.train.final import finish
    from dist_mp.train.loop import Trainer
    from dist_mp.train.progress import ProgressDisplay, make_console, print_header, print_summary, say
    from dist_mp.train.state import Position, restore
    from dist_mp.train.watchers import open_sinks, start_record

    parts = assemble(world, config, dataset)
    run = continued or claim(world, config, request)
    folder, start, states = run.path, Position(), None
    if run.checkpoint is not None:
        same_scale = run.checkpoint.config().loss_scale == config.loss_scale
        states, changes = restore(parts, run.checkpoint, keep_scale=same_scale)
        start = Position.of(run.checkpoint.manifest)
        if run.checkpoint.config().train.metric != config.train.metric:
            start.best = Best()
        run.notes.extend(["; ".join(changes)] if changes else [])
    rank_logging(folder, world.rank)
    parts.placement.warn(world.rank)
    console = make_console() if world.rank == 0 else None
    facts = header(parts)
    if run.checkpoint is not None:
        facts["resumed"] = f"after step {start.step}, {start.epoch} epochs are over ({run.checkpoint.folder.name})"
    print_header(console, facts | {"run folder": str(folder), "host": platform.node()})
    if world.rank == 0:
        for note in run.notes:
            say(console, f"note: {note}")
    if parts.trace is not None:
        world.barrier()
        parts.trace.open(folder / "timeline", world.rank)
    sinks = open_sinks(world, config.watch, folder)
    try:
        if world.rank == 0:
            write_data_state(folder, dataset)
        with RecordWriter(folder / "metrics.jsonl" if world.rank == 0 else None, sinks) as records:
            records.write(start_record(parts, facts, start.step))
            with ProgressDisplay(console, config.train.epochs, config.watch) as display:
                trainer = Trainer(
                    parts,
                    records,
                    display,
                    checkpointer=Checkpointer(world, config.checkpoint, folder),
                    stop=stop,
                    start=start if run.checkpoint is not None else None,
                    states=states,
                )
                summary = trainer.run(str(folder), begin)
            if summary is not None:
                summary = finish(parts, folder, summary)
                records.write(summary)
                if world.rank == 0:
                    write_summary(folder, summary)
            else:
                records.write(StopRecord(signal=signal.Signals(trainer.stopped_by).name))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise UserError(
            f"{folder}: cannot be written: {error.strerror}; its checkpoints are as they were: make room and go on "
            f"with --resume {folder}"
        ) from error
    parts.allreduce.close()
    if parts.trace is not None:
        parts.trace.close()
    run.release()
    if summary is None:
        name = signal.Signals(trainer.stopped_by).name
        if world.rank == 0:
            say(
                console,
                f"stopped on request ({name}); the state is saved: dist-mp run -n {world.size} --resume {folder}",
            )
        return EXIT_STOPPED
    if trainer.ended_early and world.rank == 0:
        say(console, trainer.ended_early)
    print_summary(console, summary)
    return 0


def claim(world: World, config: Config, request: RunRequest) -> RunFolder:
    """Open the folder of the run on rank 0, which keeps its lock, and tell all ranks what is in it. Collective.

    Raises:
        UserError: see :func:`dist_mp.train.run_folder.open_run_folder`; on all ranks.
    """
    own, answer = None, None
    if world.rank == 0:
        try:
            own = open_run_folder(config, request)
            answer = own.path, own.checkpoint.folder if own.checkpoint else None, ""
        except UserError as error:
            answer = Path(), None, str(error)
    path, checkpoint, problem = world.broadcast(answer)
    if problem:
        raise UserError(problem)
    if own is not None:
        return own
    return RunFolder(path, open_checkpoint(checkpoint, check_files=False) if checkpoint else None)


def write_summary(folder: Path, summary: SummaryRecord) -> None:
    """Write `summary.json` whole or not at all."""
    write_text(folder / "summary.json", summary.model_dump_json(indent=2) + "\n")
