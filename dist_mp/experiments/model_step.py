"""The measuring side of ``dist-mp bench model``: training steps of one configuration in a process of its own.

``python -m dist_mp.experiments.model_step REQUEST RESULT.json``; REQUEST is JSON. Out of memory is a result.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dist_mp.train.framework import import_tensorflow

PRODUCT = re.compile(r"MatMul")
UPDATE = re.compile(r"^(Assign|Resource|IsFinite$|Square$|All$|Sqrt$|L2Loss$)")
OUT_OF_MEMORY = {"outcome": "out of memory"}


@dataclass(frozen=True)
class Request:
    """A word language model and what is measured of it."""

    precision: str
    layers: int = 2
    rows: int = 64
    units: int = 512
    length: int = 35
    vocabulary: int = 10_000
    threads: int = 1
    steps: int = 5
    """Steps after two of warm-up."""
    recompute: bool = False
    softmax_block: int | None = None
    details: bool = True
    """Measure the products alone, the peak and the share of the operations too."""
    memory_gib: float | None = None
    """Limit on the memory of the process (GiB); None: no limit but the machine's."""


@dataclass(frozen=True)
class Product:
    """A matrix product [m, k] x [k, n] of a step."""

    m: int
    k: int
    n: int
    transpose_a: bool
    transpose_b: bool
    count: int
    """Times a step."""


def products_of(request: Request) -> list[Product]:
    """The products of a training step; they amount to 3 * (16 N^2 L + 2 N V) operations a word, by the usual count."""
    n, steps, rows, words, layers = (
        request.units,
        request.length,
        request.rows,
        request.vocabulary,
        request.layers,
    )
    all_rows, transposed = rows * steps, request.precision == "bf16"
    return [
        Product(all_rows, n, 4 * n, False, False, layers),
        Product(rows, n, 4 * n, False, False, layers * steps),
        Product(rows, 4 * n, n, False, transposed, layers * steps),
        Product(all_rows, 4 * n, n, False, True, layers),
        Product(n, all_rows, 4 * n, True, False, 2 * layers),
        Product(all_rows, n, words, False, False, 1),
        Product(all_rows, words, n, False, True, 1),
        Product(n, all_rows, words, True, False, 1),
    ]


def step_operations(layers: int, rows: int, units: int, length: int, vocabulary: int) -> int:
    """Floating-point operations of a training step: 3 * (16 N^2 L + 2 N V) a word, multiply and add counted as two."""
    return 3 * rows * length * (16 * units * units * layers + 2 * units * vocabulary)


def measure(request: Request) -> dict[str, Any]:
    """Time the steps; with `details` also the products alone, the peak product rate and the shares of operations."""
    import tensorflow as tf

    baseline = _resident("VmRSS")
    step, language = _make_step(request)
    for _ in range(2):
        step()
    counted = _tensor_peak()
    seconds = [_time(step) for _ in range(request.steps)]
    result: dict[str, Any] = {
        "outcome": "measured",
        "seconds": seconds,
        "peak_bytes": _resident("VmHWM") - baseline,
        "tensor_bytes": _tensor_peak() if counted is not None else None,
        "weights": int(sum(np.prod(v.shape) for v in language.variables)),
    }
    if request.details:
        dtype = language.compute_dtype
        result["shares"] = _shares(step)
        result["softmax_seconds"] = _softmax_alone(request, dtype) if request.softmax_block is None else 0.0
        result["products_seconds"] = sum(p.count * _product_alone(p, dtype) for p in products_of(request))
        side = 2048
        alone = _product_alone(Product(side, side, side, False, False, 1), dtype)
        result["peak_flops"] = 2 * side**3 / alone
        result["tensorflow"] = tf.__version__
    return result


def _make_step(request: Request) -> tuple[Callable[[], Any], Any]:
    import tensorflow as tf

    from dist_mp.codec.table import codec_by_name
    from dist_mp.comm.world import World
    from dist_mp.config import Config
    from dist_mp.data.base import DataSpec
    from dist_mp.exchange.allreduce import Allreduce
    from dist_mp.exchange.graph import GraphExchange
    from dist_mp.exchange.plan import plan_buckets
    from dist_mp.model.build import build_task, initial_masters
    from dist_mp.precision.loss_scale import LossScale
    from dist_mp.precision.master import MasterWeights
    from dist_mp.precision.policy import COMPUTE_DTYPES
    from dist_mp.train.step import TrainStep, Window

    config = Config.model_validate(
        {
            "precision": request.precision,
            "data": {"kind": "text", "path": "random words", "length": request.length},
            "model": {
                "kind": "language",
                "layers": request.layers,
                "units": request.units,
                "recompute": request.recompute,
                "softmax_block": request.softmax_block,
            },
            "optimizer": {"name": "sgd"},
        }
    )
    spec = DataSpec(request.length, vocabulary=request.vocabulary)
    task = build_task(config, spec, COMPUTE_DTYPES[request.precision])
    masters = MasterWeights(task.model.trainable_variables, initial_masters(config, spec), config.optimizer)
    codec = codec_by_name(request.precision)
    plan = plan_buckets(task.paths, [tuple(v.shape) for v in task.variables], 8.0, codec.block)
    exchange = GraphExchange(plan, Allreduce(World.open(), codec, plan, "shared"))
    step = TrainStep(task, masters, LossScale(config.loss_scale, request.precision), exchange, num_workers=1)
    words = np.random.default_rng(0).integers(0, request.vocabulary, (2, request.rows, request.length))
    inputs, targets = (tf.constant(w, tf.int32) for w in words)
    window = Window(inputs, targets, tf.ones(inputs.shape), tf.zeros(request.rows, tf.bool))
    state, total = task.initial_state(request.rows), tf.constant(float(request.rows * request.length))
    seed, rate = tf.constant([1, 2]), tf.constant(0.1)
    return lambda: step.update(window, state, total, seed, rate).loss_sum.numpy(), task


def _time(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _resident(which: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most so far."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {which} in /proc/self/status")


def _tensor_peak() -> int | None:
    """Most bytes that TensorFlow's allocator held since the last call; None where it keeps no account.

    The resident size also counts what the allocator keeps of what was freed.
    """
    import tensorflow as tf

    try:
        peak = int(tf.config.experimental.get_memory_info("CPU:0")["peak"])
        tf.config.experimental.reset_memory_stats("CPU:0")
    except ValueError:
        return None
    return peak


def _product_alone(product: Product, dtype: Any) -> float:
    """Median seconds of one product by itself, operands at hand."""
    import tensorflow as tf

    shape_a, shape_b = (product.m, product.k), (product.k, product.n)
    a = tf.cast(tf.random.stateless_normal(shape_a[::-1] if product.transpose_a else shape_a, [1, 2]), dtype)
    b = tf.cast(tf.random.stateless_normal(shape_b[::-1] if product.transpose_b else shape_b, [3, 4]), dtype)

    @tf.function(autograph=False)
    def run(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.matmul(a, b, transpose_a=product.transpose_a, transpose_b=product.transpose_b)

    run(a, b)
    return median(_time(lambda: run(a, b)) for _ in range(min(max(product.count, 3), 12)))


def _softmax_alone(request: Request, dtype: Any) -> float:
    """Seconds of softmax, loss and their gradient from the logits on, without the products."""
    import tensorflow as tf

    from dist_mp.model.ops import softmax_losses

    rows = request.rows * request.length
    logits = tf.cast(tf.random.stateless_normal((rows, request.vocabulary), [1, 2]), dtype)
    targets = tf.random.stateless_uniform((rows,), [3, 4], 0, request.vocabulary, tf.int32)

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(logits)
            total = tf.reduce_sum(softmax_losses(logits, targets))
        return tf.reduce_max(tf.abs(tape.gradient(total, logits)[:1]))

    run()
    return median(_time(run) for _ in range(3))


def _shares(step: Callable[[], Any]) -> dict[str, float]:
    """Seconds of one profiled step by kind of operation; `rest` is scheduling and what is not an operation."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options=options)
        total = _time(step)
        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        for file in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(file.read_bytes())
    sums = {"products": 0.0, "fused loops": 0.0, "exchange": 0.0, "update": 0.0, "other operations": 0.0}
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                kind = operation_kind(plane.event_metadata[event.metadata_id].name)
                if kind is not None:
                    sums[kind] += event.duration_ps * 1e-12
    return sums | {"rest": max(total - sum(sums.values()), 0.0), "step": total}


def operation_kind(event: str) -> str | None:
    """The kind of an event of TensorFlow's profiler, None if it is no operation or lies within another one.

    Operations are named ``node:Type``. XLA's loops (gates, softmax) run within ``CpuExecutable::ExecuteAsyncOnStream``.
    """
    if event == "CpuExecutable::ExecuteAsyncOnStream":
        return "fused loops"
    node, colon, operation = event.rpartition(":")
    if not colon or node.endswith(":") or " " in event:
        return None
    if PRODUCT.search(operation):
        return "products"
    if operation in ("PyFunc", "PyFuncStateless", "EagerPyFunc"):
        return "exchange"
    if UPDATE.search(operation):
        return "update"
    if operation in ("StatefulPartitionedCall", "PartitionedCall", "While", "If", "XlaLaunch", "_XlaRun"):
        return None
    return "other operations"


def main(arguments: Sequence[str]) -> None:
    """Measure one request and write the result."""
    request = Request(**json.loads(arguments[0]))
    tf = import_tensorflow(request.threads, 0)
    if request.memory_gib is not None:
        limit = int(request.memory_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        result = measure(request)
    except (MemoryError, tf.errors.ResourceExhaustedError):
        result = OUT_OF_MEMORY
    Path(arguments[1]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
