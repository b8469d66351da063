"""The exchange inside a graph: one host call a bucket, in a fixed order, during backward or right after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dist_mp.exchange.averager import Averager
from dist_mp.exchange.pieces import aligned
from dist_mp.exchange.plan import Bucket, Slot
from dist_mp.exchange.virtual import VirtualAllreduce

Gradient = Any
"""A dense tensor, tf.IndexedSlices or None."""


class GraphExchange:
    """Averages a list of gradients over the ranks, as part of a graph.

    Each bucket is one host call, which works on TensorFlow's memory and gives the means back without a copy: a
    ``tf.numpy_function`` where gradients lie in host memory, a ``tf.py_function`` on the GPU where they lie there. The
    calls are chained, so that every rank issues the same collectives in the same order, and a call starts as soon as
    its gradients are there, also while backward still computes others.

    With a single inter-op thread and gradients in host memory nothing can run beside a call, and TensorFlow takes what
    is ready in an order of its own, another on each rank: ranks would wait for each other within backward. There the
    calls wait until backward is over (docs/decisions.md has times).

    The means lie in buffers of this object, and the next step overwrites them: use them within the step.
    """

    def __init__(self, plan: Sequence[Bucket], allreduce: Averager) -> None:
        """Allocate the buffers of the means.

        Args:
            plan: the buckets that `allreduce` was made for.
            allreduce: averages one bucket.
        """
        self._plan = tuple(plan)
        self._allreduce = allreduce
        if allreduce.gpu is None:
            self._calls = [self._host_call(number) for number in range(len(self._plan))]
            self._place, self._function = "/CPU:0", tf.numpy_function
            self._after_backward = tf.config.threading.get_inter_op_parallelism_threads() == 1
        else:
            from dist_mp.exchange.graph_device import device_call  # numba.cuda, for those who have a GPU

            device = allreduce.gpu.device
            self._calls = [device_call(device, allreduce, k, bucket) for k, bucket in enumerate(self._plan)]
            self._place, self._function = "/CPU:0" if device.simulated else "/GPU:0", tf.py_function
            self._after_backward = False

    def __call__(self, gradients: Sequence[Gradient]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Average over the ranks.

        Args:
            gradients: one for each variable in creation order, float32, float16 or bfloat16. None counts as zeros;
                IndexedSlices are summed in FP32 into a dense gradient, whose size does not depend on the ranks.

        Returns:
            The FP32 means in creation order, and the same numbers as flat FP32 buckets with zeros between the slots.
        """
        means: dict[int, tf.Tensor] = {}
        flats: list[tf.Tensor] = []
        dense = [[_dense(gradients[slot.index], slot) for slot in bucket.slots] for bucket in self._plan]
        begin = [gradient for sources in dense for gradient in sources] if self._after_backward else []
        for number, (bucket, sources) in enumerate(zip(self._plan, dense, strict=True)):
            # The order of collectives is the same on all ranks: bucket k waits for bucket k - 1.
            with tf.control_dependencies(flats[-1:] or begin), tf.device(self._place):
                types = [tf.float32] * (1 + len(bucket.slots))
                flat, *parts = self._function(self._calls[number], sources, types)
            flat.set_shape([bucket.length])
            flats.append(flat)
            for slot, part in zip(bucket.slots, parts, strict=True):
                part.set_shape(slot.shape)
                means[slot.index] = part
        return [means[index] for index in range(len(gradients))], flats

    def put(self, gradients: Sequence[Gradient]) -> tf.Operation:
        """Hand over the gradients of a virtual worker that is not its rank's last; the operation is done with them."""
        virtual = self._allreduce
        if not isinstance(virtual, VirtualAllreduce):
            raise TypeError("only an exchange of virtual workers takes the gradients of several")
        done: list[tf.Tensor] = []
        for number, bucket in enumerate(self._plan):
            sources = [_dense(gradients[slot.index], slot) for slot in bucket.slots]

            @tf.autograph.experimental.do_not_convert
            def put(*sources: NDArray[Any], number: int = number) -> np.int32:
                virtual.put(number, [np.asarray(s) for s in sources])
                return np.int32(0)

            with tf.control_dependencies(done[-1:]), tf.device("/CPU:0"):
                done.append(tf.numpy_function(put, sources, tf.int32))
        return tf.group(*done)

    def _host_call(self, number: int) -> Callable[..., list[NDArray[np.float32]]]:
        out = aligned(4 * self._plan[number].length).view(np.float32)
        # Views from here, since tf.slice copies what does not end at a multiple of 64 bytes.
        slots = self._plan[number].slots
        views = [out, *(out[s.offset : s.offset + s.numel].reshape(s.shape) for s in slots)]

        @tf.autograph.experimental.do_not_convert
        def average(*sources: NDArray[Any]) -> list[NDArray[np.float32]]:
            self._allreduce.mean(number, [np.asarray(s) for s in sources], out)  # a scalar comes as a NumPy scalar
            return views

        return average


def _dense(gradient: Gradient, slot: Slot) -> tf.Tensor:
    if gradient is None:
        return tf.zeros(slot.shape, tf.float32)
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, tf.float32)
        return tf.math.unsorted_segment_sum(values, gradient.indices, slot.shape[0])
    return gradient
