"""A job of ranks with a simulated GPU each, on an MPI library without CUDA.

``python -m tests.exchange.placed CUDA_AWARE ALGORITHM``; prints where the gradients were averaged, and the mean.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"


def main(cuda_aware: Any, algorithm: str) -> None:
    """Run the job."""
    import numpy as np

    from dist_mp.codec.table import codec_by_name
    from dist_mp.comm.abort import abort_on_exception, fail
    from dist_mp.comm.world import World
    from dist_mp.errors import UserError
    from dist_mp.exchange.allreduce import Allreduce
    from dist_mp.exchange.placement import place
    from dist_mp.exchange.plan import flat_bucket

    world = World.open()
    abort_on_exception(world)
    with world:
        try:
            placement = place(world, 0, algorithm, cuda_aware)
        except UserError as error:
            fail(world, error)
            raise
        placement.warn(world.rank)
        if placement.gpu is None:
            if world.rank == 0:
                print(f"host memory, {placement.fact}")
            return
        device, bucket = placement.gpu.device, flat_bucket(20)
        out = device.empty(bucket.length, np.float32)
        with Allreduce(world, codec_by_name("fp16"), [bucket], gpu=placement.gpu) as allreduce:
            allreduce.mean(0, [device.from_host(np.full(20, 1.0 + world.rank, np.float32))], out)
        if world.rank == 0:
            print(f"step 1: mean {out.copy_to_host()[7]}, direct {placement.gpu.direct}, {placement.fact}")


if __name__ == "__main__":
    main(*sys.argv[1:])
