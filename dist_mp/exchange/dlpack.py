"""Memory between TensorFlow and our kernels without a copy, by DLPack (https://dmlc.github.io/dlpack).

TensorFlow gives and takes DLPack capsules only; these few structures save a second GPU array library.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

CPU, CUDA = 1, 2
"""Kinds of devices."""
_FLOAT, _BFLOAT = 2, 4
_DTYPES = {(_FLOAT, 32): np.float32, (_FLOAT, 16): np.float16, (_BFLOAT, 16): np.uint16}
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Numbers(NamedTuple):
    """Contiguous numbers somewhere."""

    pointer: int
    n: int
    dtype: Any
    """float32, float16, or uint16 for the bits of bfloat16."""
    device: tuple[int, int]
    """Kind and index."""


def read(capsule: object) -> Numbers:
    """What a capsule refers to; it must live on while the memory is used."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Managed.from_address(get(capsule, _NAME)).tensor
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    step = 1
    for i in reversed(range(tensor.ndim)):
        if tensor.strides and shape[i] > 1 and tensor.strides[i] != step:
            raise ValueError(f"numbers of shape {shape} that do not lie one after the other")
        step *= shape[i]
    kind = tensor.dtype.code, tensor.dtype.bits
    if kind not in _DTYPES or tensor.dtype.lanes != 1:
        raise ValueError(f"no kernel for numbers of DLPack type {kind}")
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Numbers(pointer, math.prod(shape), _DTYPES[kind], (tensor.device.kind, tensor.device.index))


class Exported:
    """FP32 memory of ours, as often as wanted in a capsule.

    Nobody is told when the taker no longer needs it: the memory must outlive what is made of it.
    """

    def __init__(self, pointer: int, shape: tuple[int, ...], device: tuple[int, int]) -> None:
        """Describe C-ordered float32 numbers of this shape."""
        self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        tensor = _Tensor(pointer, _Device(*device), len(shape), _Type(_FLOAT, 32, 1), self._shape, None, 0)
        self._managed = _Managed(tensor, None, None)

    def capsule(self) -> object:
        """A new capsule, which can be taken once."""
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), _NAME, None)
