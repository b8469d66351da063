"""The exchange as part of a tf.function, under a real mpirun."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.world import World
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.graph import GraphExchange
from dist_mp.exchange.plan import plan_buckets
from tests.exchange.expected import mean_over_ranks

PATHS = ["embedding", "kernel", "bias", "unused", "scalar"]
SHAPES = [(50, 8), (40, 30), (30,), (5, 5), ()]


def values_of(rank: int, number: int) -> np.ndarray:
    """The gradient of a variable on a rank."""
    rng = np.random.default_rng([rank, number])
    return rng.standard_normal(SHAPES[number]).astype(np.float32)


class Recorder:
    """An Allreduce that writes down what it is given."""

    gpu = None

    def __init__(self, allreduce: Allreduce) -> None:
        self.allreduce = allreduce
        self.order: list[int] = []
        self.sources: list[tuple[int, str]] = []
        self.outputs: list[int] = []

    def mean(self, index: int, sources: Any, out: Any) -> None:
        """Average and remember."""
        self.order.append(index)
        self.sources += [(np.asarray(s).ctypes.data, s.dtype.name) for s in sources]
        self.outputs.append(out.ctypes.data)
        self.allreduce.mean(index, sources, out)


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=120)
def test_means_of_all_kinds_of_gradients() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    with World.open() as world:
        for name, dtype in (("fp32", tf.float32), ("fp16", tf.float16), ("bf16", tf.bfloat16)):
            codec = codec_by_name(name)
            plan = plan_buckets(PATHS, SHAPES, 0.004, codec.block)
            assert len(plan) > 2
            with Allreduce(world, codec, plan) as allreduce:
                check_graph(world, name, dtype, plan, allreduce)


def check_graph(world: World, name: str, dtype: Any, plan: Any, allreduce: Allreduce) -> None:
    """Dense, sparse, missing and scalar gradients, twice, in one graph."""
    import tensorflow as tf

    recorder = Recorder(allreduce)
    exchange = GraphExchange(plan, recorder)  # type: ignore[arg-type]
    indices = np.array([3, 3, 7, 49, 3], np.int32)

    @tf.function
    def step(factor: tf.Tensor, rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, *rest: tf.Tensor) -> Any:
        unused, scalar = rest
        missing = world.rank == world.size - 1  # the last rank has no gradient for this variable, the others have
        sparse = tf.IndexedSlices(rows * factor, tf.constant(indices), SHAPES[0])
        means, flats = exchange([sparse, kernel * factor, bias * factor, None if missing else unused, scalar * factor])
        return [tf.identity(m) for m in means], [tf.identity(f) for f in flats]

    for turn in range(2):
        factor = tf.cast(2.0**turn, dtype)
        own = [tf.cast(values_of(world.rank, n), dtype) for n in range(5)]
        rows = tf.cast(values_of(world.rank, 0)[:5], dtype)
        means, flats = step(factor, rows, *own[1:])
        assert [tuple(m.shape) for m in means] == SHAPES and {m.dtype for m in means} == {tf.float32}
        for number, mean in enumerate(means):
            everyone = []
            for rank in range(world.size):
                value = np.array(tf.cast(values_of(rank, number), dtype), dtype=np.float32) * 2.0**turn
                if number == 0:
                    dense = np.zeros(SHAPES[0], np.float32)
                    np.add.at(dense, indices, value[:5])  # FP32, as the rows come
                    value = dense
                if number == 3:
                    value = value * (rank != world.size - 1) / 2.0**turn
                everyone.append(value.reshape(-1).astype(np.float32))
            want = mean_over_ranks(name, everyone, [world.size])
            np.testing.assert_array_equal(mean.numpy().reshape(-1), want, err_msg=f"{name} {PATHS[number]}")
        for bucket, flat in zip(plan, flats, strict=True):
            content = flat.numpy()
            assert content.shape == (bucket.length,)
            for slot in bucket.slots:
                part = content[slot.offset : slot.offset + slot.numel]
                np.testing.assert_array_equal(part, means[slot.index].numpy().reshape(-1))
                content[slot.offset : slot.offset + slot.numel] = 0
            assert not content.any()
    # The collectives come in the order of the plan, and the gradients in their own type.
    assert recorder.order == list(range(len(plan))) * 2
    assert {d for _, d in recorder.sources} - {"float32"} == ({dtype.name} - {"float32"})
    assert len(set(recorder.outputs)) == len(plan) and all(address % 64 == 0 for address in recorder.outputs)


@pytest.mark.mpi(ranks=[1], timeout=60)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_single_thread_exchanges_after_backward(threads: int) -> None:
    """With one inter-op thread the first call waits for the gradients of all buckets, with two for its own only."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    codec = codec_by_name("fp32")
    plan = plan_buckets(PATHS, SHAPES, 0.001, codec.block)
    assert len(plan) > 2
    with World.open() as world, Allreduce(world, codec, plan) as allreduce:
        exchange = GraphExchange(plan, allreduce)
        inputs = [tf.TensorSpec(shape) for shape in SHAPES]
        graph = tf.function(lambda *x: exchange([v * 2 for v in x])[1]).get_concrete_function(*inputs).graph
        calls = [op for op in graph.get_operations() if op.type == "PyFunc"]
        assert len(calls) == len(plan)
        # What an operation takes as an input does not stand among its control inputs.
        first, second = ({op.name for op in [*c.control_inputs, *(t.op for t in c.inputs)]} for c in calls[:2])
        products = {op.name for op in graph.get_operations() if op.type == "Mul"}
        assert len(products) == len(SHAPES)
        assert len(first & products) == (len(SHAPES) if threads == 1 else len(plan[0].slots))
        assert calls[0].name in second, "and the second waits for the first"


@pytest.mark.mpi(ranks=[1, 2], timeout=60)
def test_memory_goes_in_and_out_without_a_copy() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    with World.open() as world:
        plan = plan_buckets(["w"], [(960,)], 1.0)
        with Allreduce(world, codec_by_name("fp16"), plan) as allreduce:
            recorder = Recorder(allreduce)
            exchange = GraphExchange(plan, recorder)  # type: ignore[arg-type]
            gradient = tf.constant(np.arange(960) + world.rank, tf.float16)
            means, flats = tf.function(lambda g: exchange([g]))(gradient)
            assert recorder.sources[0][0] == gradient.__array__().ctypes.data
            assert recorder.outputs[0] == flats[0].__array__().ctypes.data == means[0].__array__().ctypes.data
