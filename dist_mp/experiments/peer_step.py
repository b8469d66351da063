"""A training step of the same language model in Keras or PyTorch: the peers of ``dist-mp bench model``.

``PYTHON peer_step.py keras|torch REQUEST RESULT.json``. It runs under the peer's own interpreter and imports nothing of
ours. Keras: its own layers and SGD in float32 (it has no bfloat16 LSTM on a CPU). PyTorch: nn.LSTM, under autocast for
bfloat16. As many threads as the request says, between operations too.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def keras_step(request: dict[str, Any], inputs: Any, targets: Any) -> Callable[[], Any]:
    """A step that returns the loss."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(request["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(request["threads"])
    units, words = request["units"], request["vocabulary"]
    layers: list[Any] = [keras.layers.Embedding(words, units)]
    layers += [keras.layers.LSTM(units, return_sequences=True) for _ in range(request["layers"])]
    model = keras.Sequential([*layers, keras.layers.Dense(words)])
    model.build(inputs.shape)
    x, y = tf.constant(inputs), tf.constant(targets)

    @tf.function
    def run() -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    return lambda: run().numpy()


def torch_step(request: dict[str, Any], inputs: Any, targets: Any) -> Callable[[], Any]:
    """A step that returns the loss."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(request["threads"])
    units, words = request["units"], request["vocabulary"]
    embedding, output = torch.nn.Embedding(words, units), torch.nn.Linear(units, words)
    lstm = torch.nn.LSTM(units, units, request["layers"], batch_first=True)
    optimizer = torch.optim.SGD([*embedding.parameters(), *lstm.parameters(), *output.parameters()], 0.1)
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    sixteen = request["precision"] != "fp32"

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=sixteen):
            logits = output(lstm(embedding(x))[0])
        loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, words), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def main(peer: str, request_text: str, result_path: Path) -> None:
    """Take two steps to warm up, then those of the request."""
    import numpy as np

    request = json.loads(request_text)
    shape = (2, request["rows"], request["length"])
    inputs, targets = np.random.default_rng(0).integers(0, request["vocabulary"], shape)
    step = (keras_step if peer == "keras" else torch_step)(request, inputs, targets)
    seconds = []
    for _ in range(request["steps"] + 2):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    result_path.write_text(json.dumps({"outcome": "measured", "seconds": seconds[2:]}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
