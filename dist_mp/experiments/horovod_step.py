"""A training step of Keras with and without Horovod, in turn, as one round of ``dist-mp bench step --peers DIR``.

Runs under the mpirun and the interpreter of an environment that has Horovod, and imports nothing of ours:
``mpirun -n 2 DIR/horovod/bin/python horovod_step.py REQUEST RESULT.json``, REQUEST as JSON. The model is the one of
``dist-mp bench step`` in Keras's own layers and SGD, FP32 or Keras's mixed FP16 (there is no bfloat16 LSTM on a CPU).
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(request_text: str, result_path: Path) -> None:
    """Take the steps of the request; rank 0 writes the result."""
    import horovod.tensorflow as hvd
    import keras
    import numpy as np
    import tensorflow as tf

    request = json.loads(request_text)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    half = request["precision"] == "fp16"
    keras.mixed_precision.set_dtype_policy("mixed_float16" if half else "float32")
    compression = hvd.Compression.fp16 if half else hvd.Compression.none
    layers: list[Any] = [keras.layers.Embedding(request["vocabulary"], request["units"])]
    layers += [keras.layers.LSTM(request["units"], return_sequences=True) for _ in range(request["layers"])]
    layers += [keras.layers.Dense(request["vocabulary"])]
    model = keras.Sequential(layers)
    shape = (request["rows"], request["length"])
    model.build(shape)
    words = np.random.default_rng(hvd.rank()).integers(0, request["vocabulary"], (2, *shape)).astype(np.int32)
    inputs, targets = tf.constant(words[0]), tf.constant(words[1])

    def make(exchange: bool) -> Any:
        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                logits = tf.cast(model(inputs, training=True), tf.float32)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
            gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]
            if exchange:
                gradients = [
                    hvd.allreduce(g, name=f"gradient-{i}", compression=compression) for i, g in enumerate(gradients)
                ]
            for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
                variable.assign_sub(1e-3 * tf.cast(gradient, variable.dtype))
            return loss

        return step

    steps = {"without": make(False), "with_exchange": make(True)}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(request["steps"] + 2):
        for name, step in steps.items():
            hvd.allreduce(tf.zeros(1), name="barrier")  # Horovod for TensorFlow has no barrier
            start = time.perf_counter()
            step().numpy()
            if number >= 2:
                taken[name].append(time.perf_counter() - start)
    if hvd.rank() == 0:
        result_path.write_text(json.dumps(taken))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
