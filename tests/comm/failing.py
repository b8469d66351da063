"""A job of three steps in which one rank fails, with a prefetch thread alive that is no daemon.

``python -m tests.comm.failing HOW WHEN RANK``; HOW it fails: raise, thread, exit, user or all-user; WHEN: before,
in or after a step, or graph (inside the host call of a tf.function).
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.abort import abort_on_exception, fail
from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.plan import Bucket, flat_bucket


def main(how: str, when: str, culprit: int) -> None:
    """Run the job."""
    with World.open() as world:
        abort_on_exception(world)
        threading.Thread(target=time.sleep, args=(120,), name="prefetch", daemon=False).start()

        def trouble() -> None:
            mistake = UserError("config.yaml: units must be positive, got -1")
            if how == "all-user":
                fail(world, mistake)
            if world.rank != culprit % world.size:
                return
            if how == "user":
                fail(world, mistake)
            if how == "exit":
                sys.exit(7)
            if how == "thread":
                thread = threading.Thread(target=trouble_in_thread)
                thread.start()
                thread.join()
            raise RuntimeError(f"rank {world.rank} broke")

        def trouble_in_thread() -> None:
            raise RuntimeError(f"rank {world.rank} broke in a thread")

        bucket = flat_bucket(1000)
        with Allreduce(world, codec_by_name("fp16"), [bucket]) as allreduce:
            if when == "before":
                trouble()
            run = in_graph(bucket, allreduce, trouble) if when == "graph" else allreduce.mean
            for _ in range(3):
                out = np.empty(bucket.length, np.float32)
                run(0, [np.full(1000, world.rank, np.float32)], out)
                if when == "in":
                    trouble()
            if when == "after":
                trouble()
            world.barrier()
    print("the end was reached", flush=True)


def in_graph(bucket: Bucket, allreduce: Allreduce, trouble: Any) -> Any:
    """A step as a tf.function, with the trouble inside its host call."""
    import tensorflow as tf

    from dist_mp.exchange.graph import GraphExchange

    class Troubled:
        gpu = None

        def mean(self, *arguments: Any) -> None:
            trouble()
            allreduce.mean(*arguments)

    exchange = GraphExchange([bucket], Troubled())  # type: ignore[arg-type]
    step = tf.function(lambda gradient: exchange([gradient])[0][0])
    return lambda number, sources, out: step(tf.constant(sources[0]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
