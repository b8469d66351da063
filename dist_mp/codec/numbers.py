"""Conversions between float32, float16 and bfloat16 that LLVM turns into vector instructions.

Numba has no half types on a CPU. Here a float16 number is seen as uint16 and a bfloat16 number as int16, so that
Numba's own dispatch over argument types picks the conversion: ``widen(x)`` gives float32 from any of the three and
``narrow(x, like)`` gives the type of `like` from float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

_VIEWS = {np.dtype(np.float32): np.float32, np.dtype(np.float16): np.uint16, np.dtype(ml_dtypes.bfloat16): np.int16}


def kernel_view(array: NDArray[Any]) -> NDArray[Any]:
    """The array under the dtype by which kernels know its numbers; no copy."""
    try:
        return array.view(_VIEWS[array.dtype])
    except KeyError:
        raise ValueError(f"no kernel for numbers of type {array.dtype}") from None


@intrinsic
def widen(typing: Any, x: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The number as float32, exactly."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if x == types.float32:
            return args[0]
        if x == types.uint16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
        bits = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(x), generate


@intrinsic
def narrow(typing: Any, x: types.Type, like: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The float32 number rounded to the nearest of the type of `like`, ties to even; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if like == types.float32:
            return args[0]
        if like == types.uint16:
            return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
        return _round_to_bfloat16(builder, args[0])

    return like(types.float32, like), generate


def _round_to_bfloat16(builder: Any, x: Any) -> Any:
    """Add just under half of the last kept place (half, if it is odd) and cut; a NaN is cut and made quiet."""
    i32 = ir.IntType(32)

    def constant(value: int) -> Any:
        return ir.Constant(i32, value)

    bits = builder.bitcast(x, i32)
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(0x7FFF))), constant(16))
    # Rounding would carry a NaN with a small payload into infinity, or one with a full payload into zero.
    quiet = builder.or_(builder.lshr(bits, constant(16)), constant(0x40))
    code = builder.select(builder.fcmp_unordered("uno", x, x), quiet, rounded)
    return builder.trunc(code, ir.IntType(16))


@intrinsic
def element(typing: Any, address: types.Type, index: types.Type, like: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The number of the type of `like` at `index` of the array that starts at `address` (an integer)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_data_type(like)
        pointer = builder.inttoptr(args[0], kind.as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]))

    return like(types.uint64, types.intp, like), generate


@intrinsic
def place(typing: Any, address: types.Type, index: types.Type, like: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The address of the number of the type of `like` at `index` of the array that starts at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_data_type(like).as_pointer())
        return builder.ptrtoint(builder.gep(pointer, [args[1]]), ir.IntType(64))

    return types.uint64(types.uint64, types.intp, like), generate


@intrinsic
def store_element(typing: Any, address: types.Type, index: types.Type, x: types.Type) -> tuple[Any, Callable[..., Any]]:
    """Write a number at `index` of the array of its type that starts at `address` (an integer)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_data_type(x).as_pointer())
        builder.store(args[2], builder.gep(pointer, [args[1]]))
        return context.get_dummy_value()

    return types.void(types.uint64, types.intp, x), generate


@intrinsic
def bits_of(typing: Any, x: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The bits of a float32 number as uint32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def of_bits(typing: Any, bits: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The float32 number of these bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def load_float32(typing: Any, address: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The float32 number at an address of any alignment."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.FloatType().as_pointer()), align=1)

    return types.float32(types.uint64), generate


@intrinsic
def store_float32(typing: Any, address: types.Type, x: types.Type) -> tuple[Any, Callable[..., Any]]:
    """Write a float32 number to an address of any alignment."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.FloatType().as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.float32), generate


@intrinsic
def load_int32(typing: Any, address: types.Type) -> tuple[Any, Callable[..., Any]]:
    """The int32 number at an address of any alignment."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)

    return types.int32(types.uint64), generate


@intrinsic
def store_int32(typing: Any, address: types.Type, x: types.Type) -> tuple[Any, Callable[..., Any]]:
    """Write an int32 number to an address of any alignment."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int32), generate
