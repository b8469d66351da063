"""TensorFlow on one rank: its threads, its GPU, and none of the lines that it prints before its logging is set up."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|oneDNN custom operations are on"
    rb"|oneDNN supports DT_HALF only on"
    rb"|Unable to register cu\w+ factory"
    rb"|This TensorFlow binary is optimized"
    rb"|computation placer already registered"
    rb"|Could not find cuda drivers|TF-TRT Warning"
)


def import_tensorflow(threads: int, local_rank: int) -> Any:
    """The module tensorflow with so many compute threads and, where there are GPUs, the one of this local rank.

    The first FP16 product is computed here as well, because oneDNN uses it to say that it has no FP16 on most
    processors; :func:`dist_mp.precision.policy.resolve_precision` says what that means.
    """
    with without_lines(_NOISE):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            mine = gpus[gpu_of_rank(local_rank, len(gpus))]
            tf.config.set_visible_devices(mine, "GPU")
            tf.config.experimental.set_memory_growth(mine, True)
        # Buckets have a graph for each of their few lengths, on purpose.
        tf.get_logger().addFilter(lambda record: "retracing" not in record.getMessage())
        with tf.device("/CPU:0"):
            ones = tf.ones([2, 2], tf.float16)
            tf.linalg.matmul(ones, ones)
    return tf


def visible_gpu() -> int | None:
    """CUDA number of the GPU that TensorFlow calls GPU:0 in this process; None if it has none."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    return gpu_number(gpus[0].name) if gpus else None


def gpu_number(name: str) -> int:
    """The number in TensorFlow's name of a physical device, such as /physical_device:GPU:3."""
    return int(name.rpartition(":")[2])


def gpu_of_rank(local_rank: int, gpus: int) -> int:
    """Number of the GPU that a rank takes, of those that its node shows it.

    Where there are more ranks than GPUs they share, in turn. Where a scheduler shows each rank a GPU of its own, that
    one is number 0.
    """
    return local_rank % gpus


@contextlib.contextmanager
def without_lines(noise: re.Pattern[bytes]) -> Iterator[None]:
    """Hold back what this process writes to standard error while inside, then pass on the lines without `noise`."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            shown = b"".join(line for line in held if not noise.search(line))
            if shown:
                os.write(2, shown)
