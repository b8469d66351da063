"""Everything that wants to be seen on a GPU, on one machine with one GPU, in one table.

``python tests/gpu/check.py`` compares the kernels of every codec with the references bit for bit, measures them beside
a copy on the device, and averages gradients of 2 ranks that share the GPU, through pinned memory and, where the MPI
library takes GPU memory, without. It needs NumPy, ml_dtypes, numba-cuda with a CUDA toolkit, and mpi4py with an MPI;
TensorFlow, CuPy and PyTorch are used where they are there and see the GPU. Status 0: all is equal; 1: something is
not; 2: no GPU. ``--simulator`` runs small sizes in Numba's simulator instead, and measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RANKS, RANK_SECONDS = 2, 240.0
BLOCK, MEASURED_NUMBERS, REPEATS = 256, 1 << 25, 20
EXCHANGED_NUMBERS, SIMULATED_NUMBERS = (1 << 16, 1 << 23), (100,)
EXCHANGED_CODECS = ("fp32", "fp16", "bf16", "dynamic_tree")
MARK = "ROW "


class Table:
    """Rows as they come, and whether all were good."""

    def __init__(self) -> None:
        self.good = True

    def row(self, what: str, result: str, remark: str = "", *, good: bool = True) -> None:
        """Print a row."""
        self.good &= good
        print(f"{what:<44} {result:<11} {remark}".rstrip(), flush=True)


def check_kernels(table: Table, simulated: bool) -> None:
    """Every codec against its reference."""
    import ml_dtypes
    import numpy as np

    from dist_mp.codec.base import Codec
    from dist_mp.codec.cuda import CudaCodec, cuda_codec
    from dist_mp.codec.table import codec_names
    from tests.codec.cuda_check import check

    for name in codec_names():
        made: list[CudaCodec] = []

        def make(codec: Codec, made: list[CudaCodec] = made) -> CudaCodec:
            if not made:  # kernels are compiled once for all sizes
                made.append(cuda_codec(codec, 16 if simulated else 128))
            return made[0].seeded(codec)

        floats, one_bit = name in ("fp32", "fp16", "bf16"), name == "one_bit"
        sizes = [(16, 37)] if simulated else [(16, 37), (64, 70), (BLOCK, 100_003), (BLOCK, 1)]
        try:
            for block, n in sizes:
                for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
                    check(name, block, n, dtype, make=make)
            for bad in (np.nan,) if simulated else (np.inf, -np.inf, np.nan):
                check(name, 16, 37, np.float32, bad=bad, make=make)
            if not floats and not one_bit and not simulated:
                check(name, 0, 5000, np.float32, make=make)
                made.clear()
                check(name, BLOCK, 5000, np.float32, stochastic=True, make=make)
        except AssertionError as error:
            table.row(f"kernels of {name}", "DIFFERENT", " ".join(str(error).split())[:150], good=False)
        except Exception as error:
            table.row(f"kernels of {name}", "FAILED", f"{type(error).__name__}: {str(error)[:200]}", good=False)
        else:
            table.row(f"kernels of {name}", "equal")


def measure(table: Table) -> None:
    """Bytes that kernels read and write a second, beside a copy on the device."""
    import numpy as np
    from numba import cuda

    from dist_mp.codec.cuda import cuda_codec
    from dist_mp.codec.cuda_device import CudaDevice
    from dist_mp.codec.table import codec_by_name, codec_names

    device, n = CudaDevice(0), MEASURED_NUMBERS
    rng = np.random.default_rng(1)
    values = device.from_host(rng.standard_normal(n).astype(np.float32))
    out = device.empty(n, np.float32)

    def seconds(call: Callable[[], None]) -> float:
        call()
        start, end = cuda.event(), cuda.event()
        start.record(device.stream)
        for _ in range(REPEATS):
            call()
        end.record(device.stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / REPEATS

    copy = 8 * n / seconds(lambda: device.copy(values, out)) / 1e9
    table.row(f"copy of {n:,} FP32 numbers", f"{copy:.0f} GB/s", "read and written, as all below")
    for name in codec_names():
        codec = codec_by_name(name, BLOCK)
        kernels, nbytes = cuda_codec(codec), codec.wire_bytes(n)
        wires, mean = device.empty(2 * nbytes, np.uint8), device.empty(nbytes, np.uint8)
        wire, rows = wires[:nbytes], wires.reshape(2, nbytes)
        kernels.encode(values, wire, device.stream)
        kernels.encode(values, wires[nbytes:], device.stream)
        calls: list[tuple[str, int, Callable[[], None]]] = [
            ("encode", 4 * n + nbytes, lambda k=kernels, w=wire: k.encode(values, w, device.stream)),
            ("decode", 4 * n + nbytes, lambda k=kernels, w=wire: k.decode(w, out, stream=device.stream)),
            (
                "sum of 2",  # with the FP32 sum in between
                3 * nbytes + 8 * n,
                lambda k=kernels, r=rows, m=mean: k.reduce(r, [0.5, 0.5], m, out, device.stream),
            ),
        ]
        for what, moved, call in calls:
            taken = seconds(call)
            speed = moved / taken / 1e9
            table.row(f"{name}: {what}", f"{speed:.0f} GB/s", f"{speed / copy:.0%} of copy, {n / taken / 1e9:.1f} G/s")


def exchange_by_ranks(table: Table, simulated: bool) -> None:
    """Start 2 ranks on the GPU and show what they report."""
    from dist_mp.comm.cuda_aware import probe_cuda
    from dist_mp.launch.mpirun import find_mpirun, job_command, this_machine

    support = probe_cuda(None if simulated else 0)
    table.row("GPU memory handed to MPI", "yes" if support.aware else "no", support.source)
    program = [sys.executable, str(Path(__file__).resolve()), "--rank", "direct" if support.aware else "staged"]
    command = job_command(find_mpirun(), RANKS, program + ["--simulator"] * simulated, machine=this_machine())
    environment = os.environ | command.environment
    try:
        done = subprocess.run(
            command.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RANK_SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        show(table, text)
        table.row(f"exchange of {RANKS} ranks", "FAILED", f"not over after {RANK_SECONDS:.0f} s", good=False)
        return
    show(table, done.stdout)
    if done.returncode != 0:
        last = " | ".join(done.stderr.strip().splitlines()[-6:])
        table.row(f"exchange of {RANKS} ranks", "FAILED", f"status {done.returncode}: {last}", good=False)


def show(table: Table, text: str) -> None:
    """Print the rows that rank 0 wrote."""
    for line in text.splitlines():
        if line.startswith(MARK):
            what, result, remark, good = json.loads(line.removeprefix(MARK))
            table.row(what, result, remark, good=good)


def rank(direct: bool, simulated: bool) -> None:
    """One of the ranks: averages on the GPU and on the host, and compares."""
    from dist_mp.comm.abort import abort_on_exception
    from dist_mp.comm.world import World

    with World.open() as world:
        abort_on_exception(world)
        for row in rows_of_rank(world, direct, simulated):
            every = world.allgather(row)
            worst = next((r for r in every if not r[3]), every[0])
            if world.rank == 0:
                print(MARK + json.dumps(worst), flush=True)


def rows_of_rank(world: Any, direct: bool, simulated: bool) -> Iterator[tuple[str, str, str, bool]]:
    """The rows of the exchange: what, result, remark, whether it is good."""
    import numpy as np

    from dist_mp.codec.cuda_device import CudaDevice
    from dist_mp.codec.table import codec_by_name
    from dist_mp.exchange.allreduce import Allreduce
    from dist_mp.exchange.placement import GpuPath
    from dist_mp.exchange.plan import flat_bucket

    device = CudaDevice(0)
    library, put = array_library(device)
    for n in SIMULATED_NUMBERS if simulated else EXCHANGED_NUMBERS:
        values = np.random.default_rng([world.rank, n]).standard_normal(n).astype(np.float32)
        for name in EXCHANGED_CODECS:
            bucket = flat_bucket(n, codec_by_name(name, BLOCK).block)
            want, out = np.empty(bucket.length, np.float32), device.empty(bucket.length, np.float32)
            with Allreduce(world, codec_by_name(name, BLOCK), [bucket]) as host:
                host.mean(0, [values], want)
            for way in [False, True] if direct else [False]:
                with Allreduce(world, codec_by_name(name, BLOCK), [bucket], gpu=GpuPath(device, way)) as ours:
                    source, kept = put(values)
                    times = []
                    for _ in range(1 if simulated else 11):
                        waits, moves = device.synchronisations, ours._algorithm.moves  # type: ignore[attr-defined]
                        world.barrier()
                        start = time.perf_counter()
                        ours.mean(0, [source], out)
                        times.append(time.perf_counter() - start)
                        waits = device.synchronisations - waits
                        moves = ours._algorithm.moves - moves  # type: ignore[attr-defined]
                    del kept
                good = bool(np.array_equal(out.copy_to_host(), want)) and waits == moves + 1
                milliseconds = "" if simulated else f"{1e3 * float(np.median(times[1:])):.3g} ms, "
                path = "GPU memory to MPI" if way else "staged"
                remark = f"{milliseconds}{waits} waits for {moves} transfers, array of {library}"
                yield f"mean of {n:,} {name}, {path}", "equal" if good else "DIFFERENT", remark, good
    if not simulated and importlib.util.find_spec("tensorflow"):
        yield from rows_of_tensorflow(world, device, direct)


def array_library(device: Any) -> tuple[str, Callable[[Any], tuple[Any, object]]]:
    """A library that owns the gradients, and what puts numbers there: a device array of ours, and what keeps it."""
    if not device.simulated and importlib.util.find_spec("cupy"):
        import cupy

        def by_cupy(values: Any) -> tuple[Any, object]:
            array = cupy.asarray(values)
            cupy.cuda.get_current_stream().synchronize()
            return device.wrap(array.data.ptr, array.size, values.dtype, array), array

        return "CuPy", by_cupy
    if not device.simulated and importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():

            def by_torch(values: Any) -> tuple[Any, object]:
                array = torch.from_numpy(values).cuda()
                torch.cuda.synchronize()
                return device.wrap(array.data_ptr(), array.numel(), values.dtype, array), array

            return "PyTorch", by_torch
    return "Numba", lambda values: (device.from_host(values), None)


def rows_of_tensorflow(world: Any, device: Any, direct: bool) -> Iterator[tuple[str, str, str, bool]]:
    """The same through a graph of TensorFlow, if it has a GPU."""
    from dist_mp.train.framework import import_tensorflow, visible_gpu

    tf = import_tensorflow(1, world.local_rank)
    if visible_gpu() is None:
        yield "mean in a graph of TensorFlow", "not tried", "TensorFlow sees no GPU", True
        return
    import numpy as np

    from dist_mp.codec.table import codec_by_name
    from dist_mp.exchange.allreduce import Allreduce
    from dist_mp.exchange.graph import GraphExchange
    from dist_mp.exchange.placement import GpuPath
    from dist_mp.exchange.plan import plan_buckets

    shapes = [(300, 400), (400,), ()]
    for dtype in ("float32", "float16", "bfloat16"):
        plan = plan_buckets(["kernel", "bias", "scalar"], shapes, 0.1)
        own = [np.random.default_rng([world.rank, k]).standard_normal(s) for k, s in enumerate(shapes)]
        codec = codec_by_name("fp16")
        with Allreduce(world, codec, plan, gpu=GpuPath(device, direct)) as ours, Allreduce(world, codec, plan) as host:
            with tf.device("/GPU:0"):
                gradients = [tf.cast(tf.constant(v, tf.float32), dtype) for v in own]
            graphs = [tf.function(GraphExchange(plan, allreduce).__call__) for allreduce in (ours, host)]
            pairs = zip(*([m.numpy() for m in graph(gradients)[0]] for graph in graphs), strict=True)
            good = all(np.array_equal(a, b) for a, b in pairs)
        yield f"mean of {dtype} in a graph of TensorFlow", "equal" if good else "DIFFERENT", "by DLPack", good


def main() -> int:
    """Run everything; returns the exit status."""
    parser = argparse.ArgumentParser(description="Check dist_mp's GPU paths on one GPU.")
    parser.add_argument("--simulator", action="store_true", help="small sizes in Numba's simulator")
    parser.add_argument("--rank", choices=("staged", "direct"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.simulator:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    if options.rank:
        rank(options.rank == "direct", options.simulator)
        return 0
    import numba
    import numpy as np
    from numba import cuda

    np.seterr(all="ignore")
    if not cuda.is_available():
        print("no GPU that numba.cuda can use: nothing was checked (--simulator runs small sizes without one)")
        return 2
    table = Table()
    name = "Numba's simulator" if options.simulator else cuda.get_current_device().name
    table.row("GPU", "", f"{name.decode() if isinstance(name, bytes) else name}; Numba {numba.__version__}")
    sections: list[Callable[[], None]] = [lambda: check_kernels(table, options.simulator)]
    sections += [] if options.simulator else [lambda: measure(table)]
    sections += [lambda: exchange_by_ranks(table, options.simulator)]
    for section in sections:
        try:
            section()
        except Exception as error:
            traceback.print_exc()
            table.row("this part", "FAILED", f"{type(error).__name__}: {error}", good=False)
    print("all is equal" if table.good else "not all is equal")
    return 0 if table.good else 1


if __name__ == "__main__":
    sys.exit(main())
