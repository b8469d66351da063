"""The measuring side of ``dist-mp bench step``: whole training steps with and without the exchange, in turn.

``python -m dist_mp.experiments.step_ranks REQUEST RESULT.json`` under mpirun is one round of it; REQUEST is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dist_mp.comm.abort import abort_on_exception
from dist_mp.comm.world import World
from dist_mp.train.framework import import_tensorflow


@dataclass(frozen=True)
class Request:
    """A word language model and how its gradients are exchanged."""

    precision: str = "fp32"
    layers: int = 2
    rows: int = 64
    units: int = 512
    length: int = 35
    vocabulary: int = 10_000
    codec: str = "auto"
    algorithm: str = "shared"
    bucket_mib: float = 8.0
    steps: int = 8
    """Pairs of steps after the warm-up."""


@dataclass(frozen=True)
class Times:
    """Seconds of single steps in the order in which they were taken: those of the slowest rank, and rank 0's shares."""

    precision: str
    without: list[float]
    with_exchange: list[float]
    exchange: list[float]
    """Seconds inside the exchange, of the steps with it: encode, move, reduce, decode, and the wait for other ranks."""
    wait: list[float]
    sent_bytes: float


def measure(world: World, request: Request) -> Times:
    """Take the steps. Collective."""
    import tensorflow as tf

    from dist_mp.codec.table import codec_by_name
    from dist_mp.config import Config
    from dist_mp.data.base import DataSpec
    from dist_mp.exchange.allreduce import Allreduce
    from dist_mp.exchange.graph import GraphExchange
    from dist_mp.exchange.placement import place
    from dist_mp.exchange.plan import plan_buckets
    from dist_mp.model.build import build_task
    from dist_mp.precision.loss_scale import LossScale
    from dist_mp.precision.master import MasterWeights
    from dist_mp.precision.policy import COMPUTE_DTYPES
    from dist_mp.train.framework import visible_gpu
    from dist_mp.train.step import TrainStep, Window

    config = Config.model_validate(
        {
            "precision": request.precision,
            "data": {"kind": "text", "path": "random words", "length": request.length},
            "model": {"kind": "language", "layers": request.layers, "units": request.units},
            "optimizer": {"name": "sgd"},
        }
    )
    spec = DataSpec(request.length, vocabulary=request.vocabulary)
    task = build_task(config, spec, COMPUTE_DTYPES[request.precision])
    initial = [tf.cast(v, tf.float32).numpy() for v in task.variables]
    masters = MasterWeights(task.model.trainable_variables, initial, config.optimizer)
    shapes = [tuple(v.shape) for v in task.variables]
    codec = codec_by_name(request.precision if request.codec == "auto" else request.codec)
    plan = plan_buckets(task.paths, shapes, request.bucket_mib, codec.block)
    rng = np.random.default_rng(world.rank)
    words = rng.integers(0, request.vocabulary, (2, request.rows, request.length)).astype(np.int32)
    window = Window(
        tf.constant(words[0]),
        tf.constant(words[1]),
        tf.ones(words[0].shape),
        tf.zeros(request.rows, tf.bool),
    )
    total = tf.constant(float(request.rows * request.length * world.size))
    seed, rate = tf.constant([1, 2]), tf.constant(1e-3)
    placement = place(world, visible_gpu(), request.algorithm, "auto")
    with Allreduce(world, codec, plan, request.algorithm, gpu=placement.gpu) as allreduce:
        kinds: dict[str, Any] = {"without": _Local(), "with": GraphExchange(plan, allreduce)}
        steps = {}
        for name, exchange in kinds.items():
            loss_scale = LossScale(config.loss_scale, request.precision)
            steps[name] = TrainStep(task, masters, loss_scale, exchange, num_workers=world.size)
        state = task.initial_state(request.rows)
        taken: dict[str, list[float]] = {name: [] for name in kinds}
        spent = []
        for number in range(request.steps + 2):
            for name, step in steps.items():
                world.barrier()
                before, start = allreduce.stats.snapshot(), time.perf_counter()
                step.update(window, state, total, seed, rate).loss_sum.numpy()
                if number >= 2:
                    taken[name].append(time.perf_counter() - start)
                    if name == "with":
                        spent.append(allreduce.stats.since(before))
    slowest = {name: np.max(world.allgather(seconds), axis=0).tolist() for name, seconds in taken.items()}
    return Times(
        request.precision,
        slowest["without"],
        slowest["with"],
        [s.exchange_seconds + s.wait_seconds for s in spent],
        [s.wait_seconds for s in spent],
        sum(s.sent_bytes for s in spent) / len(spent),
    )


class _Local:
    """The exchange of a single worker: each gradient in FP32, as the update wants it, and nothing else."""

    def __call__(self, gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the gradients as their own means."""
        import tensorflow as tf

        means = [tf.cast(gradient, tf.float32) for gradient in gradients]
        return means, means


def main(request_text: str, result_path: Path) -> None:
    """Measure one round; rank 0 writes the result."""
    with World.open() as world:
        abort_on_exception(world)
        import_tensorflow(1, world.local_rank)
        times = measure(world, Request(**json.loads(request_text)))
        if world.rank == 0:
            result_path.write_text(json.dumps(asdict(times)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
