"""A Keras optimizer that averages gradients over the ranks first, for a training loop of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.graph import GraphExchange
from dist_mp.exchange.placement import place
from dist_mp.exchange.plan import check_fingerprint, fingerprint, plan_buckets
from dist_mp.train.framework import visible_gpu


class _Averaging:
    """Mixed into a Keras optimizer's class: one exchange before each update."""

    _exchange: GraphExchange | None = None
    _allreduce: Allreduce | None = None

    def attach(self: Any, world: World, codec: str, algorithm: str, bucket_mib: float) -> None:
        """Say how gradients are averaged; done by :func:`DistributedOptimizer`."""
        object.__setattr__(self, "_how", (world, codec, algorithm, bucket_mib))

    def build(self: Any, variables: Sequence[keras.Variable]) -> None:
        """Create the optimizer's slots, plan the buckets, and give every rank the variables of rank 0. Collective."""
        if not self.built:
            world, codec_name, algorithm, bucket_mib = self._how
            shapes, paths = [tuple(v.shape) for v in variables], [v.path for v in variables]
            check_fingerprint(world, fingerprint(paths, shapes, [str(v.dtype) for v in variables]))
            codec = codec_by_name(codec_name)
            plan = plan_buckets(paths, shapes, bucket_mib, codec.block)
            placement = place(world, visible_gpu(), algorithm, "auto")
            placement.warn(world.rank)
            allreduce = Allreduce(world, codec, plan, algorithm, gpu=placement.gpu)
            object.__setattr__(self, "_allreduce", allreduce)
            object.__setattr__(self, "_exchange", GraphExchange(plan, allreduce))
            with tf.init_scope():
                broadcast_variables(world, variables)
        super().build(variables)  # type: ignore[misc]

    def close(self) -> None:
        """Free the exchange's buffers and windows; the optimizer cannot be applied any more. Collective."""
        if self._allreduce is not None:
            self._allreduce.close()

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None) -> Any:
        """Average over the ranks in FP32, then update as the optimizer does. Collective, in eager code too."""
        variables = list(trainable_variables if trainable_variables is not None else self._trainable_variables)
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        if len(grads) != len(self._trainable_variables):
            raise UserError(
                f"DistributedOptimizer got {len(grads)} gradients for {len(self._trainable_variables)} variables: "
                "give those of all variables that it was built with"
            )
        means, _ = self._exchange(grads)
        means = [tf.cast(mean, v.dtype) for mean, v in zip(means, variables, strict=True)]
        return super().apply(means, variables)  # type: ignore[misc]


def broadcast_variables(world: World, variables: Sequence[keras.Variable]) -> None:
    """Give every rank the values of rank 0. Collective."""
    values = world.broadcast([v.numpy() for v in variables] if world.rank == 0 else None)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def DistributedOptimizer(  # noqa: N802 - it stands where a class stands
    optimizer: keras.Optimizer | str,
    world: World | None = None,
    *,
    codec: str = "fp32",
    algorithm: str = "shared",
    bucket_mib: float = 8.0,
) -> keras.Optimizer:
    """The same optimizer, whose `apply` averages the gradients over the ranks first.

    It has the class of `optimizer` as a base, works with `model.compile(jit_compile=False)` and in a loop of one's
    own, in a `tf.function` or eagerly. When it is built, every rank takes the variables of rank 0. A learning rate for
    so many workers is the caller's business: see :func:`dist_mp.schedule.worker_rate`.

    Args:
        optimizer: a Keras optimizer that is not built yet, or its name.
        world: the ranks; None opens MPI.
        codec: what a number is on the wire (fp32, fp16, bf16, ...).
        algorithm: shared, pieces or native; see :mod:`dist_mp.exchange.allreduce`.
        bucket_mib: gradients travel in buckets of about this size, counted in FP32 (MiB).

    Raises:
        UserError: the optimizer is built already, or an unknown codec.
    """
    inner = keras.optimizers.get(optimizer)
    if isinstance(inner, _Averaging):
        raise UserError("DistributedOptimizer: this optimizer averages already")
    if inner.built:
        raise UserError("DistributedOptimizer: this optimizer has been used already; wrap a new one")
    codec_by_name(codec)
    base = type(inner)
    both: Any = type(base.__name__, (_Averaging, base), {})
    wrapped = both.from_config(inner.get_config())
    wrapped.attach(world or World.open(), codec, algorithm, bucket_mib)
    return wrapped
