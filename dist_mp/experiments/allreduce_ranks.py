"""The measuring side of ``dist-mp bench allreduce``: what every rank does, for our exchange and for MPI_Allreduce.

``python -m dist_mp.experiments.allreduce_ranks REQUEST RESULT.json`` under mpirun is one round of it; REQUEST is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.abort import abort_on_exception
from dist_mp.comm.native import library_sums_half, plain_mean
from dist_mp.comm.world import World
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.native import CODECS as NATIVE_CODECS
from dist_mp.exchange.plan import flat_bucket

COPY = "copy"
"""Method name of the copy of one FP32 array by every rank at once, from which the floor follows."""
MPI_FP32, MPI_FP16 = "MPI_Allreduce fp32", "MPI_Allreduce fp16"


@dataclass(frozen=True)
class Request:
    """What to measure in one round."""

    sizes: tuple[int, ...]
    """Numbers of the gradients."""
    codecs: tuple[str, ...]
    algorithms: tuple[str, ...]
    seconds: float
    """Time for each method and size (s); at least 3 calls are made."""
    ranks_per_node: int | None = None
    """Pretend nodes of so many ranks on one machine."""


@dataclass(frozen=True)
class Sample:
    """Times of one method at one size, one after the other, on rank 0."""

    method: str
    numbers: int
    milliseconds: list[float]


@dataclass(frozen=True)
class Ranks:
    """Who measured."""

    size: int
    node_sizes: tuple[int, ...]
    library: str


def ours(codec: str, algorithm: str) -> str:
    """Method name of our exchange."""
    return f"{codec} {algorithm}"


def measure(world: World, request: Request) -> list[Sample]:
    """Measure everything once. Collective; the samples are those of rank 0."""
    plain: dict[str, Any] = {MPI_FP32: np.float32}
    if all(world.allgather(library_sums_half(world))):
        plain[MPI_FP16] = np.float16
    samples = []
    for numbers in request.sizes:
        gradient = np.random.default_rng([world.rank, numbers]).standard_normal(numbers).astype(np.float32)
        copied = np.empty_like(gradient)
        methods: list[tuple[str, Callable[[], Any]]] = [(COPY, partial(np.copyto, copied, gradient))]
        methods += [(name, partial(plain_mean(world, dtype), gradient)) for name, dtype in plain.items()]
        samples += [Sample(name, numbers, _times(world, run, request)) for name, run in methods]
        for codec, algorithm in pairs(request):
            times = _exchange(world, request, codec, algorithm, gradient)
            samples.append(Sample(ours(codec, algorithm), numbers, times))
    return samples


def pairs(request: Request) -> Iterator[tuple[str, str]]:
    """Every codec with every algorithm that carries it."""
    for codec in request.codecs:
        for algorithm in request.algorithms:
            if algorithm != "native" or codec in NATIVE_CODECS:
                yield codec, algorithm


def _exchange(
    world: World, request: Request, codec_name: str, algorithm: str, gradient: NDArray[np.float32]
) -> list[float]:
    codec = codec_by_name(codec_name)
    bucket = flat_bucket(len(gradient), codec.block)
    out = np.empty(bucket.length, np.float32)
    with Allreduce(world, codec, [bucket], algorithm) as allreduce:
        return _times(world, lambda: allreduce.mean(0, [gradient], out), request)


def _times(world: World, run: Callable[[], Any], request: Request) -> list[float]:
    """Milliseconds of calls back to back, after two that warm up."""
    run()
    world.barrier()
    start = time.perf_counter()
    run()
    count = world.broadcast(int(min(max(request.seconds / (time.perf_counter() - start), 3), 1000)))
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def parse_request(text: str) -> Request:
    """The request in JSON."""
    content: dict[str, Any] = json.loads(text)
    for key in ("sizes", "codecs", "algorithms"):
        content[key] = tuple(content[key])
    return Request(**content)


def main(request_text: str, result_path: Path) -> None:
    """Measure one round; rank 0 writes the result."""
    request = parse_request(request_text)
    with World.open(request.ranks_per_node) as world:
        abort_on_exception(world)
        samples = measure(world, request)
        if world.rank == 0:
            ranks = Ranks(world.size, world.node_sizes, world.library)
            content = {"ranks": asdict(ranks), "samples": [asdict(sample) for sample in samples]}
            result_path.write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
