"""Which type a run computes in, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPUTE_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True)
class Precision:
    """The type of activations, gradients and working weights."""

    name: str
    """fp16, bf16 or fp32."""
    reason: str
    """Who chose it and why, for the run's header."""

    @property
    def compute_dtype(self) -> str:
        """The name that TensorFlow and NumPy have for it."""
        return COMPUTE_DTYPES[self.name]


def host_features() -> Mapping[str, bool]:
    """The processor's instruction sets by LLVM's names (`amx-bf16`, `avx512bf16`, `avx512fp16`, ...)."""
    from llvmlite import binding

    return dict(binding.get_host_cpu_features())


def resolve_precision(wanted: str, has_gpu: bool, features: Mapping[str, bool]) -> Precision:
    """Choose the type where the settings say `auto`, and say what to expect of it otherwise.

    On a GPU FP16 has the tensor cores and the finer mantissa. On a CPU bfloat16 is the faster type where the
    processor multiplies it (AMX or AVX-512 BF16); FP16 products run at the rate of FP32 unless the processor has
    FP16 arithmetic, so that FP16 there is for fidelity and memory, not for speed.
    """
    bf16_products = features.get("amx-bf16", False) or features.get("avx512bf16", False)
    fp16_products = features.get("amx-fp16", False) or features.get("avx512fp16", False)
    if wanted == "auto":
        if has_gpu:
            return Precision("fp16", "auto: a GPU computes FP16 products on tensor cores")
        if bf16_products:
            return Precision("bf16", "auto: this processor has bfloat16 products, FP16 would run at FP32's rate")
        return Precision("fp32", "auto: this processor has no 16-bit products")
    if has_gpu or wanted == "fp32":
        return Precision(wanted, "as configured")
    if wanted == "fp16" and not fp16_products:
        faster = "; bf16 is faster here" if bf16_products else ""
        return Precision(wanted, f"as configured; on this processor FP16 products run at FP32's rate{faster}")
    if wanted == "bf16" and not bf16_products:
        return Precision(wanted, "as configured; this processor has no bfloat16 products, expect it to be slow")
    return Precision(wanted, "as configured")
