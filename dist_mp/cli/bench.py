"""``dist-mp bench``: measurements beside a peer or a floor, in turn, as medians and ratios."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dist_mp.cli.config import print_help

RanksOption = Annotated[int, typer.Option("-n", "--ranks", min=1, help="Number of ranks.")]
RoundsOption = Annotated[int, typer.Option(min=1, help="Rounds; peers take turns in each.")]
PeersOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder with environments of peers (DIR/horovod/bin/python).")
]
OutOption = Annotated[Path | None, typer.Option(metavar="PATH", help="Where the result goes as JSON.")]


def make_app() -> typer.Typer:
    """The commands below ``dist-mp bench``."""
    app = typer.Typer(help="Measure speed and memory beside peers and floors.", rich_markup_mode=None)
    app.callback(invoke_without_command=True)(print_help)
    app.command("allreduce", short_help="The mean of a gradient over the ranks.")(allreduce)
    app.command("codec", short_help="Error and speed of every codec on one core.")(codec)
    app.command("step", short_help="What the exchange adds to a training step.")(step)
    app.command("model", short_help="A training step on one worker: time, rates, memory.")(model)
    app.command("data", short_help="Whether the input keeps up with the training step.")(data)
    return app


def allreduce(
    ranks: RanksOption = 2,
    sizes: Annotated[str, typer.Option(help="Numbers of the gradients, for example 65536,8388608 or 2^20.")] = "",
    codecs: Annotated[str, typer.Option(help="Names of codecs with commas between (default: all).")] = "",
    algorithms: Annotated[str, typer.Option(help="Names of algorithms with commas between.")] = "shared,pieces,native",
    rounds: RoundsOption = 3,
    seconds: Annotated[float, typer.Option(help="Time for each method and size in a round (s).")] = 0.3,
    ranks_per_node: Annotated[int | None, typer.Option(min=1, help="Pretend that nodes have so many ranks.")] = None,
    hostfile: Annotated[str | None, typer.Option(help="Hosts and slots, in mpirun's own format.")] = None,
    peers: PeersOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the result as JSON and plot.")] = None,
) -> None:
    """Measure the mean of a gradient over the ranks: every codec and algorithm, MPI_Allreduce, Horovod, and the floor.

    Starts its own ranks; under mpirun it measures on the ranks that are there.
    """
    from dist_mp.experiments.bench_allreduce import SIZES, Bench, run_bench

    bench = Bench(
        ranks=ranks,
        sizes=tuple(map(_number, names(sizes))) or SIZES,
        codecs=names(codecs),
        algorithms=names(algorithms),  # type: ignore[arg-type]
        rounds=rounds,
        seconds=seconds,
        ranks_per_node=ranks_per_node,
        hostfile=hostfile,
        peers=peers,
        out=out,
    )
    raise typer.Exit(run_bench(bench))


def codec(
    codecs: Annotated[str, typer.Option(help="Names of codecs with commas between (default: all).")] = "",
    block: Annotated[int, typer.Option(min=0, help="Numbers that share a scale (0: all).")] = 256,
    numbers: Annotated[int, typer.Option(min=1, help="Numbers of the speed measurement.")] = 1 << 22,
    rounds: RoundsOption = 9,
    gradients: Annotated[
        list[Path] | None, typer.Option(help="A further array (.npy) for the error table; may be given several times.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="A configuration whose gradients join the error table; trained by one worker.")
    ] = None,
    train_steps: Annotated[int, typer.Option(min=1, help="Steps after which its gradients are taken.")] = 50,
    peers: PeersOption = None,
    out: OutOption = None,
) -> None:
    """Measure the error and the speed of every codec on one core, beside copying memory and bitsandbytes."""
    import numpy as np
    from rich.console import Console

    from dist_mp.errors import UserError
    from dist_mp.experiments.bench_codec import CodecBench, measure_codecs, print_report

    arrays = {}
    for path in gradients or []:
        try:
            arrays[path.stem] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"--gradients {path}: is no array that NumPy can read ({error})") from error
    if train is not None:
        from dist_mp import settings
        from dist_mp.cli.train import require_tensorflow
        from dist_mp.experiments.run_gradients import gradients_of_run
        from dist_mp.launch.mpirun import rank_environment

        config = settings.load(train, [])
        require_tensorflow()
        os.environ.update(rank_environment(config.threads, os.environ))
        trained = gradients_of_run(config, train_steps)
        arrays["gradients"] = np.concatenate([gradient.ravel() for gradient in trained.values()])
    bench = CodecBench(names(codecs), block, numbers, rounds=rounds, gradients=arrays, peers=peers)
    report = measure_codecs(bench)
    print_report(Console(), report)
    if out is not None:
        try:
            out.write_text(report.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written ({error.strerror})") from error


def model(
    layers: Annotated[str, typer.Option(help="L, LSTM layers; several with commas between make a sweep.")] = "2",
    rows: Annotated[str, typer.Option(help="B, rows.")] = "64",
    units: Annotated[str, typer.Option(help="N, cells a layer.")] = "512",
    precisions: Annotated[str, typer.Option(help="fp32, bf16, fp16, with commas between.")] = "fp32,bf16",
    length: Annotated[int, typer.Option(min=1, help="T, time steps.")] = 35,
    vocabulary: Annotated[int, typer.Option(min=2, help="V, words.")] = 10_000,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps in a round, after the warm-up.")] = 5,
    rounds: RoundsOption = 3,
    recompute: Annotated[bool, typer.Option(help="Compute gates again in backward, to save memory.")] = False,
    softmax_block: Annotated[int | None, typer.Option(min=1, help="Words of a block of the softmax.")] = None,
    keras: Annotated[bool, typer.Option(help="Measure Keras's LSTM beside.")] = False,
    peers: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with PyTorch in DIR/torch, measured beside.")
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory a process may use (GiB; default: nine tenths of what is free).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the result as JSON and plots.")] = None,
) -> None:
    """Measure a training step of the word language model on one worker, sweeping sizes and precisions.

    Time, FLOP/s as a whole and of the matrix products alone, share of time by operation, peak memory. Running out of
    memory is a result.
    """
    from dist_mp.experiments.bench_model import Bench, run_bench

    run_bench(
        Bench(
            layers=tuple(map(_number, names(layers))),
            rows=tuple(map(_number, names(rows))),
            units=tuple(map(_number, names(units))),
            precisions=names(precisions),
            length=length,
            vocabulary=vocabulary,
            threads=threads,
            steps=steps,
            rounds=rounds,
            recompute=recompute,
            softmax_block=softmax_block,
            keras=keras,
            peers=peers,
            memory_gib=memory_gib,
            out=out,
        )
    )


def step(
    ranks: RanksOption = 2,
    precisions: Annotated[str, typer.Option(help="fp32, bf16, fp16, with commas between.")] = "fp32,bf16",
    layers: Annotated[int, typer.Option(min=1, help="L, LSTM layers.")] = 2,
    rows: Annotated[int, typer.Option(min=1, help="B, rows a rank.")] = 64,
    units: Annotated[int, typer.Option(min=1, help="N, cells a layer.")] = 512,
    length: Annotated[int, typer.Option(min=1, help="T, time steps.")] = 35,
    vocabulary: Annotated[int, typer.Option(min=2, help="V, words.")] = 10_000,
    codec: Annotated[str, typer.Option(help="What a number is on the wire (auto: the precision's type).")] = "auto",
    algorithm: Annotated[str, typer.Option(help="shared, pieces or native.")] = "shared",
    bucket_mib: Annotated[float, typer.Option(help="Size of a bucket, counted in FP32 (MiB).")] = 8.0,
    steps: Annotated[int, typer.Option(min=1, help="Pairs of steps in a round, with and without.")] = 8,
    rounds: RoundsOption = 2,
    peers: PeersOption = None,
    out: OutOption = None,
) -> None:
    """Measure a training step of the word language model with and without the exchange, and Horovod's with Keras."""
    from dist_mp.experiments.bench_step import Bench, run_bench
    from dist_mp.experiments.rounds import JobFailedError
    from dist_mp.experiments.step_ranks import Request

    work = Request(
        layers=layers,
        rows=rows,
        units=units,
        length=length,
        vocabulary=vocabulary,
        codec=codec,
        algorithm=algorithm,
        bucket_mib=bucket_mib,
        steps=steps,
    )
    bench = Bench(ranks, names(precisions), work, rounds, peers, out)
    try:
        run_bench(bench)
    except JobFailedError as error:
        raise typer.Exit(error.status) from error


def data(
    configurations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG | KEY=VALUE]...", help="Configurations (default: all bundled ones), and settings for all."
        ),
    ] = None,
    ranks: RanksOption = 2,
    steps: Annotated[int, typer.Option(min=2, help="Steps of the run.")] = 60,
    batches: Annotated[int, typer.Option(min=1, help="Batches that are prepared alone.")] = 200,
    out: OutOption = None,
) -> None:
    """Measure batches alone, the memory they need, and how long the steps of a run wait for them."""
    from dist_mp.experiments.bench_data import Bench, run_bench

    words = configurations or []
    bench = Bench(
        configurations=tuple(word for word in words if "=" not in word),
        overrides=tuple(word for word in words if "=" in word),
        ranks=ranks,
        steps=steps,
        batches=batches,
        out=out,
    )
    run_bench(bench)


def names(text: str) -> tuple[str, ...]:
    """The words of a list with commas between."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    base, power, exponent = text.partition("^")
    if not base.isdigit() or (power and not exponent.isdigit()) or len(exponent) > 2:
        raise typer.BadParameter(f"{text!r} is not a number such as 65536 or 2^16")
    return int(base) ** int(exponent) if power else int(base)
