"""The mean of a gradient over the ranks by Horovod, as one round of ``dist-mp bench allreduce --peers DIR``.

Runs under the mpirun and the interpreter of an environment that has Horovod, and imports nothing of ours:
``mpirun -n 2 DIR/horovod/bin/python horovod_allreduce.py REQUEST RESULT.json``, REQUEST as JSON. The gradient is a
tensor before the clock starts, and the mean stays one.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(request_text: str, result_path: Path) -> None:
    """Measure the sizes of the request; rank 0 writes the result."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import horovod.tensorflow as hvd
    import numpy as np
    import tensorflow as tf

    request = json.loads(request_text)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    samples = []
    for numbers in request["sizes"]:
        rng = np.random.default_rng([hvd.rank(), numbers])
        gradient = tf.constant(rng.standard_normal(numbers).astype(np.float32))
        for method, compression in (("Horovod", hvd.Compression.none), ("Horovod fp16", hvd.Compression.fp16)):

            @tf.function
            def mean(
                x: Any, compression: Any = compression, name: str = f"{method}-{numbers}".replace(" ", "-")
            ) -> Any:
                return hvd.allreduce(x, compression=compression, name=name)

            mean(gradient).numpy()
            start = time.perf_counter()
            mean(gradient).numpy()
            # The ranks agree on their mean time, and so on the number of calls.
            seconds = float(
                hvd.allreduce(
                    tf.constant(time.perf_counter() - start), name=f"time-{method}-{numbers}".replace(" ", "-")
                )
            )
            times = []
            for _ in range(int(min(max(request["seconds"] / seconds, 3), 1000))):
                start = time.perf_counter()
                mean(gradient).numpy()
                times.append(1e3 * (time.perf_counter() - start))
            samples.append({"method": method, "numbers": numbers, "milliseconds": times})
    if hvd.rank() == 0:
        result_path.write_text(json.dumps({"samples": samples}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
