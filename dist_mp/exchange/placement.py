"""Where the gradients of a run are averaged, in host memory or on GPUs, and whether MPI takes GPU memory as it is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dist_mp.comm.cuda_aware import CudaSupport, probe_cuda
from dist_mp.comm.world import World
from dist_mp.errors import UserError

if TYPE_CHECKING:
    from dist_mp.codec.cuda_device import CudaDevice

CudaAware = Literal["auto", "require", "off"]

VIRTUAL = "virtual"
"""The exchange of virtual workers, in place of an algorithm's name."""


@dataclass(frozen=True)
class GpuPath:
    """The GPU of a rank, and how its memory reaches the other ranks."""

    device: CudaDevice
    direct: bool
    """Whether MPI gets device memory; otherwise pinned host memory in between."""


@dataclass(frozen=True)
class Placement:
    """Where gradients are averaged, the same on every rank."""

    gpu: GpuPath | None
    """None: in host memory."""
    fact: str = ""
    """Path and reason for the header of a run; empty where no rank has a GPU."""
    warning: str = ""
    """What a user should know before the run begins, once; empty if nothing."""

    def warn(self, rank: int) -> None:
        """Log the warning, if there is one, on rank 0."""
        if self.warning and rank == 0:
            logging.getLogger("dist_mp.exchange").warning(self.warning)


def place(world: World, gpu: int | None, algorithm: str, cuda_aware: CudaAware) -> Placement:
    """Decide for all ranks. Collective.

    Args:
        world: the ranks.
        gpu: CUDA number of the GPU on which this rank's gradients lie; None if they lie in host memory.
        algorithm: of the exchange.
        cuda_aware: `require` refuses whatever keeps MPI from getting GPU memory, `off` stages without asking, `auto`
            asks, stages where the answer is no, and says so.

    Raises:
        UserError: on every rank, with `require`.
    """
    obstacle = _obstacle(world, gpu, algorithm)
    support: CudaSupport | None = None
    if cuda_aware == "require" or (cuda_aware == "auto" and not obstacle):
        support = ask_all_nodes(world, gpu)
    if cuda_aware == "require" and support is not None and (obstacle or not support.aware):
        reasons = "; ".join(filter(None, [obstacle, "" if support.aware else support.source]))
        raise UserError(
            f"exchange.cuda_aware is require, but GPU memory cannot go to MPI as it is: {reasons}; "
            "use an MPI library built with CUDA on ranks with a GPU each, or set exchange.cuda_aware to auto or off"
        )
    if obstacle or gpu is None:
        if not any(world.allgather(gpu is not None)):
            return Placement(None)
        fact = f"gradients go through host memory, where TensorFlow copies them: {obstacle}"
        return Placement(None, fact, fact)
    from dist_mp.codec.cuda_device import CudaDevice

    device = CudaDevice(gpu)
    if support is None:
        return Placement(GpuPath(device, False), "on GPUs, staged through pinned host memory (cuda_aware: off)")
    if support.aware:
        return Placement(GpuPath(device, True), f"on GPUs, GPU memory handed to MPI ({support.source})")
    warning = f"gradients on GPUs go to MPI through pinned host memory: {support.source}"
    return Placement(GpuPath(device, False), f"on GPUs, staged through pinned host memory ({support.source})", warning)


def _obstacle(world: World, gpu: int | None, algorithm: str) -> str:
    """What keeps the gradients from being averaged on GPUs, the same words on every rank; "" if nothing does."""
    with world.watchdog("the agreement on GPUs"):
        mine = "has no GPU" if gpu is None else numba_obstacle()
        every = world.comm.allgather(mine)
    if all(words == "has no GPU" for words in every):
        return "no rank has a GPU"
    for rank, words in enumerate(every):
        if words:
            return f"rank {rank} {words}"
    if algorithm == "native":
        return "exchange.algorithm native takes gradients from host memory"
    if algorithm == VIRTUAL:
        return "virtual workers hand over their gradients in host memory"
    return ""


def numba_obstacle() -> str:
    """Why this process cannot run our CUDA kernels; "" if it can."""
    try:
        from numba import cuda
    except ImportError as error:
        return f"cannot import numba.cuda ({error})"
    if not cuda.is_available():
        return "has a GPU that numba.cuda does not see: install numba-cuda and a CUDA toolkit"
    return ""


def ask_all_nodes(world: World, gpu: int | None) -> CudaSupport:
    """The answer of each node's library, as one: the first no, or rank 0's yes. Collective."""
    with world.watchdog("the probe of GPU transfers"):
        mine = probe_cuda(gpu) if world.local_rank == 0 else None
        every = [support for support in world.comm.allgather(mine) if support is not None]
    return next((support for support in every if not support.aware), every[0])
