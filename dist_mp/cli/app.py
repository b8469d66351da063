"""The commands, and what becomes of a mistake in one of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from dist_mp import __version__
from dist_mp.cli import bench, config, data, doctor, export, jobs, predict, run, submit, train, watch
from dist_mp.errors import EXIT_USER_ERROR, UserError
from dist_mp.launch.mpirun import rank_and_size

USAGE_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""What typer raises for an option or an argument that it does not understand."""


def make_app() -> typer.Typer:
    """All commands of ``dist-mp``."""
    app = typer.Typer(
        name="dist-mp",
        help="Train recurrent models data-parallel on MPI, in 16 bits with FP32 master weights.",
        epilog="Start with: dist-mp run -n 2 configs/quickstart.yaml",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )

    app.callback(invoke_without_command=True)(top)
    app.command("run", short_help="Train on so many ranks, started with mpirun.")(run.run)
    app.command("train", short_help="Train as one rank of mpirun or srun, or alone.")(train.train)
    app.command("export", short_help="The weights of a run as Keras model and SavedModel.")(export.export)
    app.command("predict", short_help="What a trained model says of data, as CSV or Parquet.")(predict.predict)
    app.command("submit", short_help="Put a run into the queue of Slurm, PBS or LSF.")(submit.submit)
    app.command("doctor", short_help="Check MPI, launcher, machine, GPUs and network.")(doctor.doctor)
    app.command("status", short_help="How submitted jobs stand.")(jobs.status)
    app.command("logs", short_help="The log of a submitted job.")(jobs.logs)
    app.command("cancel", short_help="End a submitted job.")(jobs.cancel)
    app.command("watch", short_help="Show runs as they go.")(watch.watch)
    app.command("report", short_help="One page that shows what runs came to.")(watch.report)
    app.add_typer(config.make_app(), name="config")
    app.add_typer(data.make_app(), name="data")
    app.add_typer(bench.make_app(), name="bench")
    return app


def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Answer ``dist-mp`` and ``dist-mp --version``."""
    if version:
        print(f"dist-mp {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status. A mistake of the user is one line on standard error and status 2."""
    try:
        status = make_app()(list(arguments), prog_name="dist-mp", standalone_mode=False)
    except USAGE_ERROR as error:
        return _mistake(error.format_message())  # type: ignore[attr-defined]
    except UserError as error:
        return _mistake(str(error))
    except (typer.Abort, KeyboardInterrupt):
        print("dist-mp: interrupted", file=sys.stderr)
        return 130
    return status if isinstance(status, int) else 0


def _mistake(message: str) -> int:
    """Print a mistake as one line. Under mpirun all ranks make it at once: rank 0 speaks, others if it cannot."""
    rank, _ = rank_and_size(os.environ) or (0, 1)
    if rank:
        time.sleep(1.0)
    line = " ".join(message.split())
    print(f"error: {line}" if rank == 0 else f"error (rank {rank}): {line}", file=sys.stderr, flush=True)
    return EXIT_USER_ERROR
