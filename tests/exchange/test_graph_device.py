"""Gradients that TensorFlow has on a device, in a graph: by DLPack to the kernels and back. The device is simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.exchange.test_device import simulate

PATHS = ["embedding", "kernel", "unused", "scalar", "empty"]
SHAPES: list[tuple[int, ...]] = [(6, 4), (17, 3), (5,), (), (0, 3)]


@pytest.mark.mpi(ranks=[2], timeout=240)
def test_a_graph_gives_the_means_of_the_host() -> None:
    simulate()
    import tensorflow as tf

    from dist_mp.codec.cuda_device import CudaDevice
    from dist_mp.codec.table import codec_by_name
    from dist_mp.comm.world import World
    from dist_mp.exchange.allreduce import Allreduce
    from dist_mp.exchange.bucket_size import sweep_bucket_sizes
    from dist_mp.exchange.graph import GraphExchange
    from dist_mp.exchange.placement import GpuPath
    from dist_mp.exchange.plan import plan_buckets

    tf.config.threading.set_intra_op_parallelism_threads(1)
    device = CudaDevice(0)
    with World.open() as world:
        for name in ("fp32", "fp16", "bf16"):
            dtype = {"fp32": tf.float32, "fp16": tf.float16, "bf16": tf.bfloat16}[name]
            codec = codec_by_name(name)
            plan = plan_buckets(PATHS, SHAPES, 0.0003, codec.block)
            assert len(plan) > 1
            ours = Allreduce(world, codec, plan, gpu=GpuPath(device, False))
            spy = _Spy(ours)
            exchanges = [GraphExchange(plan, spy), GraphExchange(plan, Allreduce(world, codec, plan))]  # type: ignore[arg-type]
            values = [_values(world.rank, shape) for shape in SHAPES]
            rows = tf.cast(_values(world.rank, (3, 4)), dtype)
            dense = [tf.cast(v, dtype) for v in values[1:]]

            @tf.function
            def step(rows: Any, *dense: Any, exchanges: Any = exchanges) -> Any:
                embedding = tf.IndexedSlices(rows, tf.constant([1, 4, 1]), SHAPES[0])
                kernel, _, scalar, empty = dense
                every = [e([embedding, kernel * 2, None, scalar, empty]) for e in exchanges]
                return [[tf.identity(t) for t in (*means, *flats)] for means, flats in every]

            for turn in range(2):  # again into the same buffers
                rows = rows * (turn + 1)
                on_device, on_host = step(rows, *dense)
                for got, want in zip(on_device, on_host, strict=True):
                    assert got.dtype == tf.float32 and got.shape == want.shape
                    np.testing.assert_array_equal(got.numpy(), want.numpy(), err_msg=f"{name} turn {turn}")
            assert on_host[1].numpy().any()
            assert spy.order == list(range(len(plan))) * 2
        # Nothing is copied: the kernels see TensorFlow's memory, and TensorFlow sees ours.
        plan = plan_buckets(["w"], [(48,)], 1.0)
        spy = _Spy(Allreduce(world, codec_by_name("fp32"), plan, gpu=GpuPath(device, True)))
        gradient = tf.constant(np.arange(48) + world.rank, tf.float32)
        means, _ = GraphExchange(plan, spy)([gradient])  # type: ignore[arg-type]
        assert spy.pointers == [(gradient.__array__().ctypes.data, means[0].__array__().ctypes.data)]
        np.testing.assert_array_equal(means[0], np.arange(48) + 0.5)
        # The sweep of bucket sizes runs where the gradients lie.
        waits = device.synchronisations
        codec, gpu = codec_by_name("bf16"), GpuPath(device, False)
        dtype = tf.bfloat16.as_numpy_dtype
        sweep = sweep_bucket_sizes(world, codec, ["a", "b"], [(9, 3), (30,)], dtype, "shared", (0.0001, 1.0), 1, gpu)
        assert set(sweep.seconds) == {0.0001, 1.0} and device.synchronisations - waits == 2 * (2 + 1) * 2


class _Spy:
    """An Allreduce that writes down where the numbers lie."""

    def __init__(self, allreduce: Any) -> None:
        self.allreduce, self.gpu = allreduce, allreduce.gpu
        self.order: list[int] = []
        self.pointers: list[tuple[int, int]] = []

    def mean(self, index: int, sources: Any, out: Any) -> None:
        """Average and remember."""
        self.order.append(index)
        first = next(source for source in sources if source is not None)
        self.pointers.append((first.ctypes.data, out.ctypes.data))
        self.allreduce.mean(index, sources, out)


def _values(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng([rank, len(shape)]).standard_normal(shape).astype(np.float32)


def test_memory_that_is_not_in_order_or_of_another_type_is_refused() -> None:
    from dist_mp.exchange.dlpack import CPU, Exported, read

    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    got = read(numbers.__dlpack__())
    assert got == (numbers.ctypes.data, 12, np.float32, (CPU, 0))
    with pytest.raises(ValueError, match="one after the other"):
        read(numbers.T.__dlpack__())
    with pytest.raises(ValueError, match="DLPack type"):
        read(numbers.astype(np.float64).__dlpack__())
    exported = Exported(numbers.ctypes.data, (4, 3), (CPU, 0))
    for _ in range(2):
        again = read(exported.capsule())
        assert again == got
