"""Compare the CUDA kernels with the references, on a device or in Numba's simulator. Run by test_cuda.py."""

from __future__ import annotations

import sys
from collections.abc import Callable

import ml_dtypes
import numpy as np
from numba import cuda

from dist_mp.codec.base import Codec
from dist_mp.codec.cuda import CudaCodec, cuda_codec
from dist_mp.codec.reference import ReferenceBlock, reference_codecs
from dist_mp.codec.table import codec_by_name

EDGES = np.array([0.0, -0.0, 1.0, -1.0, 2.0**-149, 65504, 65519, -65520, 1 + 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8])


def on_device(values: np.ndarray) -> object:
    """A device array; bfloat16 goes by its bits."""
    return cuda.to_device(values.view(np.uint16) if values.dtype == ml_dtypes.bfloat16 else values)


def small_blocks(codec: Codec) -> CudaCodec:
    """Kernels with few threads a block, each of which the simulator gives a thread of the host."""
    return cuda_codec(codec, threads=16)


def check(
    name: str,
    block: int,
    n: int,
    dtype: type,
    *,
    bad: float | None = None,
    stochastic: bool = False,
    make: Callable[[Codec], CudaCodec] = small_blocks,
) -> None:
    """Encode, decode and sum `n` numbers on the device and by the reference; `make` gives the kernels of a codec."""
    rng = np.random.default_rng([block, n])
    values = rng.standard_normal((3, n)) * 10.0 ** rng.uniform(-6, 2, (3, n))
    values[:, : len(EDGES)] = EDGES[:n]
    if bad is not None:
        values[1, n // 2] = bad
    values = values.astype(np.float32).astype(dtype)
    codec, reference = codec_by_name(name, block, stochastic=stochastic), reference_codecs(block)[name]
    if stochastic:
        assert isinstance(reference, ReferenceBlock)
        codec, reference = codec.seeded(1 << 60 | 12345, 77), reference.seeded(1 << 60 | 12345, 77)
    kernels = make(codec)
    wires = np.zeros((3, codec.wire_bytes(n)), np.uint8)
    got = np.zeros_like(wires)
    for wire, row, out in zip(wires, values, got, strict=True):
        reference.encode(row, wire)
        device = cuda.to_device(out)
        kernels.encode(on_device(np.ascontiguousarray(row)), device)
        device.copy_to_host(out)
    where = f"{name} block {block} n {n} {np.dtype(dtype)} {bad} {stochastic}"
    if bad is None or name not in ("fp32", "fp16", "bf16", "one_bit"):
        np.testing.assert_array_equal(got, wires, err_msg=where)
    else:  # any NaN will do; a GPU has other bits for it
        for pair in zip(got, wires, strict=True):
            numbers = np.zeros((2, n), np.float32)
            for wire, row in zip(pair, numbers, strict=True):
                reference.decode(wire, row)
            np.testing.assert_array_equal(*numbers, err_msg=where)
    weights = [0.5, 1 / 3, 0.25]
    numbers, expected = np.zeros(n, np.float32), np.zeros(n, np.float32)
    device = cuda.to_device(numbers)
    kernels.decode(cuda.to_device(wires[1]), device, 1 / 3)
    device.copy_to_host(numbers)
    reference.decode(wires[1], expected, 1 / 3)
    np.testing.assert_array_equal(numbers, expected, err_msg=where)
    mean, wanted = np.zeros_like(wires[0]), np.zeros_like(wires[0])
    device = cuda.to_device(mean)
    kernels.reduce(cuda.to_device(wires), weights, device, cuda.to_device(numbers))
    device.copy_to_host(mean)
    reference.reduce(list(wires), weights, wanted, numbers)
    one, two = np.zeros((2, n), np.float32)
    reference.decode(mean, one)
    reference.decode(wanted, two)
    np.testing.assert_array_equal(one, two, err_msg=where)


def main() -> None:
    """Check the codecs named on the command line."""
    np.seterr(all="ignore")  # the simulator runs kernels as Python; overflow to infinity is what a half does
    for name in sys.argv[1:]:
        one_bit, book = name == "one_bit", name not in ("fp32", "fp16", "bf16", "one_bit")
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            check(name, 16, 37, dtype)
        check(name, 24, 1, np.float32)
        check(name, 64, 70, np.float32)
        for bad in (np.inf, -np.inf, np.nan):
            check(name, 16, 37, np.float32, bad=bad)
        if book:
            check(name, 0, 70, np.float32)
            check(name, 0, 70, np.float32, bad=np.nan)
            check(name, 16, 40, np.float32, stochastic=True)
            check(name, 0, 40, ml_dtypes.bfloat16, stochastic=True)
        elif not one_bit:
            check(name, 16, 0, np.float32)
        print(name, "equal", flush=True)


if __name__ == "__main__":
    main()
