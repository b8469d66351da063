"""The host call of a bucket whose gradients lie on a GPU: TensorFlow's memory in, ours out, by DLPack."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from dist_mp.codec.cuda_device import CudaDevice
from dist_mp.exchange.averager import Averager
from dist_mp.exchange.dlpack import CPU, CUDA, Exported, read
from dist_mp.exchange.plan import Bucket


def device_call(device: CudaDevice, allreduce: Averager, number: int, bucket: Bucket) -> Callable[..., list[tf.Tensor]]:
    """What a ``tf.py_function`` calls with the bucket's gradients, eager tensors on the device.

    ``to_dlpack`` waits for TensorFlow's stream, so that our kernels read finished gradients; the mean is finished when
    ``Allreduce.mean`` returns, so that TensorFlow may read it on any stream.
    """
    out = device.empty(bucket.length, np.float32)
    start = device.pointer(out)
    # TensorFlow counts the GPUs that it may see, and a rank sees one.
    kind = (CPU, 0) if device.simulated else (CUDA, 0)
    exported = [Exported(start, (bucket.length,), kind)]
    exported += [Exported(start + 4 * slot.offset, slot.shape, kind) for slot in bucket.slots if slot.numel]
    shapes = [(bucket.length,), *(slot.shape for slot in bucket.slots)]

    def flat(capsule: object) -> Any:
        numbers = read(capsule)
        return device.wrap(numbers.pointer, numbers.n, numbers.dtype, capsule) if numbers.n else None

    @tf.autograph.experimental.do_not_convert
    def average(*sources: tf.Tensor) -> list[tf.Tensor]:
        capsules = [tf.experimental.dlpack.to_dlpack(source) for source in sources]
        allreduce.mean(number, [flat(capsule) for capsule in capsules], out)
        taken = iter(exported)
        return [
            tf.experimental.dlpack.from_dlpack(next(taken).capsule()) if math.prod(shape) else tf.zeros(shape)
            for shape in shapes
        ]

    return average
