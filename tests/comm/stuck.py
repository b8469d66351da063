"""A job of training-like steps in which one rank gets stuck.

``python -m tests.comm.stuck HOW RANK RANKS_PER_NODE LIMIT``; HOW: python (sleeps), held (sleeps and lets no other
thread of it run), stopped (by a signal), late (comes within the limit) or agree (does not come to a control word).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import numpy as np

from dist_mp.codec.table import codec_by_name
from dist_mp.comm.abort import abort_on_exception
from dist_mp.comm.world import World
from dist_mp.exchange.allreduce import Allreduce
from dist_mp.exchange.plan import plan_buckets


def main(how: str, culprit: int, ranks_per_node: int, limit: float) -> None:
    """Run the job."""
    with World.open(ranks_per_node or None) as world:
        abort_on_exception(world)
        buckets = plan_buckets(["a", "b"], [(3000,), (50,)], 0.001)
        with Allreduce(world, codec_by_name("fp16"), buckets) as allreduce:
            for step in range(4):
                if step == 1:
                    world.watch(limit)  # step 0 may compile kernels, which takes longer than the limit
                world.watchdog.step = step
                for index, bucket in enumerate(buckets):
                    (slot,) = bucket.slots
                    if (step, index) == (2, 1) and world.rank == culprit % world.size and how != "agree":
                        get_stuck(how, limit)
                    source = np.full(slot.numel, world.rank, np.float32)
                    allreduce.mean(index, [source], np.empty(bucket.length, np.float32))
                if how == "agree" and step == 1 and world.rank == culprit % world.size:
                    time.sleep(60)
                world.agree(np.array([1.0 + world.rank]))
    print("the end was reached", flush=True)


def get_stuck(how: str, limit: float) -> None:
    """Do not go on for a minute."""
    if how == "late":
        time.sleep(limit / 2)
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "held":
        ctypes.PyDLL(None).sleep(60)  # a call by PyDLL keeps the interpreter's lock
    else:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
