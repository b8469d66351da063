"""The child process of :mod:`dist_mp.comm.cuda_aware`: asks the MPI library about GPU memory, then tries it.

Run as ``python -m dist_mp.comm.cuda_probe [GPU]``, outside of the job. Each answer is a line of JSON that is written
before the next question is asked, so that a crash loses nothing that came before it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

TRIED_BYTES = (64, 1 << 20)
"""Short messages and long ones take different ways through an MPI library."""

SWITCHES = {
    "MPICH_GPU_SUPPORT_ENABLED": "Cray MPICH",
    "MPIR_CVAR_ENABLE_GPU": "MPICH",
    "MV2_USE_CUDA": "MVAPICH2",
    "I_MPI_OFFLOAD": "Intel MPI",
}
"""Variables that switch GPU memory on (other than 0) or off, for libraries that cannot be asked."""


def main(gpu: int | None) -> None:
    """Ask, and try a transfer unless the answer is no or there is no GPU."""
    import mpi4py

    mpi4py.rc.thread_level = "multiple"
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    tell(library=f"{vendor} {'.'.join(map(str, version))}")
    says, because = ask(MPI, os.environ)
    tell(says=says, because=because)
    if gpu is not None and says is not False:
        tell(transfer="begun")
        tell(transfer=transfer(MPI, gpu))


def tell(**answer: Any) -> None:
    """Write an answer."""
    print(json.dumps(answer), flush=True)


def ask(mpi: Any, environ: Mapping[str, str]) -> tuple[bool | None, str]:
    """What the library says of itself: yes, no or nothing, and by which way it says so."""
    library = mpi_library()
    if library is not None and hasattr(library, "MPIX_Query_cuda_support"):
        yes = library.MPIX_Query_cuda_support() == 1
        built = None if yes else built_with_cuda(library)
        why = {None: "", False: ", it was built without CUDA", True: ", it was built with CUDA but finds none"}[built]
        return yes, f"MPIX_Query_cuda_support says {'yes' if yes else 'no'}{why}"
    if library is not None and hasattr(library, "MPIX_GPU_query_support"):
        flag = ctypes.c_int(0)
        library.MPIX_GPU_query_support(0, ctypes.byref(flag))  # 0 is CUDA
        return bool(flag.value), f"MPIX_GPU_query_support says {'yes' if flag.value else 'no'}"
    kinds = mpi.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds")  # MPI 4.1, section 12.4.3
    if kinds is not None and "cuda" in kinds:
        return True, f"mpi_memory_alloc_kinds is {kinds}"
    return switched(environ)


def switched(environ: Mapping[str, str]) -> tuple[bool | None, str]:
    """What the variables say."""
    for name in SWITCHES:
        if name in environ:
            return environ[name] != "0", f"it cannot be asked, and {name} is {environ[name]}"
    return None, "it cannot be asked"


def mpi_library() -> ctypes.CDLL | None:
    """The MPI library that mpi4py has loaded into this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        if hasattr(library, "MPI_Init"):
            return library
    return None


def built_with_cuda(library: ctypes.CDLL) -> bool | None:
    """Open MPI's build flag, which ``ompi_info`` shows too; None with other libraries."""
    index, count, level = ctypes.c_int(-1), ctypes.c_int(), ctypes.c_int()
    if library.MPI_T_init_thread(0, ctypes.byref(level)) != 0:
        return None
    try:
        found = library.MPI_T_cvar_get_index(b"mpi_built_with_cuda_support", ctypes.byref(index))
        if found != 0 or index.value < 0:
            return None
        handle, value = ctypes.c_void_p(), (ctypes.c_byte * 64)()
        if library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)) != 0:
            return None
        library.MPI_T_cvar_read(handle, value)
        return any(value)
    finally:
        library.MPI_T_finalize()


def transfer(mpi: Any, gpu: int) -> str:
    """Send GPU memory to ourselves: "ok", or what went wrong."""
    from numba import cuda

    if not cuda.is_available():
        return "numba.cuda finds no GPU"
    cuda.select_device(gpu)
    for nbytes in TRIED_BYTES:
        sent = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
        source, target = cuda.to_device(sent), cuda.to_device(np.zeros_like(sent))
        cuda.synchronize()
        try:
            mpi.COMM_SELF.Sendrecv(source, dest=0, recvbuf=target, source=0)
        except mpi.Exception as error:
            return str(error)
        if not np.array_equal(target.copy_to_host(), sent):
            return f"{nbytes} bytes arrived changed"
    return "ok"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
