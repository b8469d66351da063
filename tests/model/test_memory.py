"""What `recompute` saves, by the peak of TensorFlow's allocator: what a layer more in a stack adds to it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from dist_mp.model.gru_sequence import gru_sequence
from dist_mp.model.lstm_sequence import lstm_sequence

STEPS, ROWS, CELLS = 6, 640, 128
# The allocator keeps no account of tensors below 256 KiB: h of a step is larger here.


def peak_bytes(kind: str, layers: int, unroll: bool, recompute: bool) -> int:
    """Most bytes that tensors take in a forward and backward pass, beyond what is there before."""
    gates = {"lstm": 4, "gru": 3}[kind]
    bias = tf.zeros(4 * CELLS) if kind == "lstm" else tf.zeros((2, 3 * CELLS))
    states = [tf.zeros((ROWS, CELLS))] * {"lstm": 2, "gru": 1}[kind]
    draw = tf.random.stateless_normal
    weights = [(*(draw((CELLS, gates * CELLS), [i, k]) * 0.1 for k in range(2)), bias) for i in range(layers)]
    x = draw((STEPS, ROWS, CELLS), [5, 5])
    run = {"lstm": lstm_sequence, "gru": gru_sequence}[kind]

    @tf.function
    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = x
            for layer in weights:
                y = run(y, *layer, *states, recompute=recompute, unroll=unroll)[0]
            loss = tf.reduce_sum(tf.cast(y, tf.float32))
        return [tf.reduce_max(g) for g in tf.nest.flatten(tape.gradient(loss, weights))]

    step()
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    step()
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before


@pytest.mark.parametrize(("kind", "unroll"), [("lstm", True), ("lstm", False), ("gru", True)])
def test_recomputation_more_than_halves_what_a_layer_adds(kind: str, unroll: bool) -> None:
    added = {}
    for recompute in (False, True):
        few, many = (peak_bytes(kind, layers, unroll, recompute) for layers in (2, 6))
        added[recompute] = (many - few) / 4 / (STEPS * ROWS * CELLS * 4)
    # Gates, four numbers a cell and step, beside h and of an LSTM c.
    assert added[False] > {"lstm": 5.0, "gru": 4.5}[kind], added
    assert added[True] < 0.5 * added[False], added
