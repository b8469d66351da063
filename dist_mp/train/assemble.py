"""Puts the parts of a run together, and says in words what they are."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dist_mp import __version__
from dist_mp.codec.table import codec_by_name
from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.base import Dataset
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.averager import Averager
from dist_mp.exchange.bucket_size import sweep_bucket_sizes
from dist_mp.exchange.graph import GraphExchange
from dist_mp.exchange.placement import VIRTUAL, place
from dist_mp.exchange.plan import check_fingerprint, fingerprint, plan_buckets
from dist_mp.exchange.virtual import VirtualAllreduce
from dist_mp.model.build import build_task, initial_masters
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.precision.policy import Precision, host_features, resolve_precision
from dist_mp.schedule import worker_rate
from dist_mp.train.evaluate import Evaluator, collector_for
from dist_mp.train.framework import visible_gpu
from dist_mp.train.loop import Parts
from dist_mp.train.step import TrainStep
from dist_mp.train.trace import StepTrace


def assemble(world: World, config: Config, dataset: Dataset) -> Parts:
    """Build model, masters, exchange and step on this rank; all ranks call it and end with equal weights.

    Raises:
        UserError: the ranks' models differ, an unknown codec, or GPU memory cannot go to MPI where it must.
    """
    algorithm = _algorithm(config)
    virtual = config.train.virtual_workers
    placement = place(world, visible_gpu(), VIRTUAL if virtual else algorithm, config.exchange.cuda_aware)
    precision = world.broadcast(_resolve(config) if world.rank == 0 else None)
    name = precision.name if config.exchange.codec == "auto" else config.exchange.codec
    stochastic = config.exchange.rounding == "stochastic"
    codec = codec_by_name(name, config.exchange.block, stochastic=stochastic)
    task = build_task(config, dataset.spec, precision.compute_dtype)
    shapes = [tuple(v.shape) for v in task.variables]
    check_fingerprint(world, fingerprint(task.paths, shapes, [precision.compute_dtype] * len(shapes)))
    initial = world.broadcast(initial_masters(config, dataset.spec) if world.rank == 0 else None)
    masters = MasterWeights(task.model.trainable_variables, initial, config.optimizer, config.master_weights)
    loss_scale = LossScale(config.loss_scale, precision.name)
    bucket_mib, buckets = config.exchange.bucket_mib, ""
    if bucket_mib is None:
        dtype = tf.as_dtype(precision.compute_dtype).as_numpy_dtype
        sweep = sweep_bucket_sizes(world, codec, task.paths, shapes, dtype, algorithm, gpu=placement.gpu)
        bucket_mib, buckets = sweep.mib, f" ({sweep})"
    plan = plan_buckets(task.paths, shapes, bucket_mib, codec.block)
    trace = StepTrace() if config.timeline else None
    num_workers = virtual or world.size
    feedback, span = config.exchange.error_feedback, None if trace is None else trace.exchanged
    allreduce: Averager
    if virtual is not None:
        workers = virtual // world.size
        allreduce = VirtualAllreduce(world, codec, plan, workers, error_feedback=feedback, seed=config.seed, span=span)
    else:
        gpu = placement.gpu
        allreduce = Allreduce(
            world, codec, plan, algorithm, error_feedback=feedback, seed=config.seed, span=span, gpu=gpu
        )
    exchange = GraphExchange(plan, allreduce)
    step = TrainStep(
        task,
        masters,
        loss_scale,
        exchange,
        num_workers=num_workers,
        put=exchange.put,
        clip_norm=config.optimizer.clip_norm,
        l2=config.optimizer.l2,
        accumulate=config.train.accumulation > 1,
        loss_known=None if trace is None else trace.loss_known,
    )
    evaluator = Evaluator(world, config, task, dataset.valid, collector_for(dataset.spec, config.model.kind))
    rounding = ", stochastic rounding" if stochastic else ""
    how = f"{codec.name} on the wire{rounding}{' with error feedback' if feedback else ''}"
    words = f"{how}, {algorithm}, {len(plan)} bucket{'s' if len(plan) > 1 else ''}{buckets}"
    return Parts(
        world,
        config,
        dataset,
        precision,
        words,
        task,
        masters,
        loss_scale,
        allreduce,
        step,
        evaluator,
        trace,
        placement,
    )


def _algorithm(config: Config) -> str:
    return "shared" if config.exchange.algorithm == "auto" else config.exchange.algorithm


def _resolve(config: Config) -> Precision:
    return resolve_precision(config.precision, bool(tf.config.list_physical_devices("GPU")), host_features())


def header(parts: Parts) -> dict[str, str]:
    """What a user should know of the run before it starts, a fact a line."""
    world, config, precision = parts.world, parts.config, parts.precision
    numbers = sum(int(np.prod(v.shape)) for v in parts.task.variables)
    nodes = f"{world.num_nodes} node{'s' if world.num_nodes > 1 else ''}"
    batch, accumulation, workers = config.train.batch_size, config.train.accumulation, parts.num_workers
    virtual = config.train.virtual_workers is not None
    masters = "FP32 masters" if parts.masters.separate else "no separate masters"
    schedule = config.schedule
    rate = f"{worker_rate(schedule, workers):.4g} ({schedule.rule}, {schedule.base:g} at one worker)"
    return {
        "dist_mp": f"{__version__}, TensorFlow {tf.__version__}, {world.library}",
        "ranks": f"{world.size} on {nodes}, {config.threads} compute thread{'s' if config.threads > 1 else ''} each",
        **({"workers": f"{workers} virtual, {parts.workers} a rank"} if virtual else {}),
        "data": parts.dataset.describe(),
        "model": f"{config.model.kind}, {numbers:,} weights, {len(parts.task.variables)} variables",
        **({"recurrence": parts.task.recurrence} if parts.task.recurrence else {}),
        "precision": f"{precision.name}, {masters} ({precision.reason})",
        "loss scale": f"{'dynamic from' if parts.loss_scale.dynamic else 'constant'} {float(parts.loss_scale.scale):g}",
        "batch": f"{parts.global_rows} = {batch} x {workers} {'workers' if virtual else 'ranks'} x {accumulation} "
        "accumulated",
        "learning rate": rate,
        "exchange": parts.exchange,
        **({"gradients": parts.placement.fact} if parts.placement.fact else {}),
    }
