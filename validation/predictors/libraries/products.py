"""Whose kernels a measured product launches: those that a program's product launches, or AITER's.

A serving engine reaches one of a few libraries: a BLAS with tiles of all sizes that cuts K where
tiles are few, CUTLASS by the engine's rule, DeepGEMM, which both never cut it. A row is answered by
the kernels of that library, with the constants that programs have, whatever release the source had.
AITER has kernels tuned per shape, which no program here launches; their constants are by maker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernbench.hardware import KernelLibrary, SipSpec
from kernbench.library_kernels import (
    LibraryKernel,
    Product,
    product_candidates,
    tiled_product,
)
from validation.kernels import quantize_rows, scale_and_quantize_rows
from validation.predictors.libraries.aiter_names import maker_of, named_tiles
from validation.predictors.library_rows import NotModeledError

_BY_ROWS = "quantize_rows"
"""The name of the constants of the kernel that gives each row a scale of its own, and reads it
twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What a dtype of a row says of the operands."""

    dtype: str
    """The dtype that the matrix engine multiplies."""
    input_bytes: float
    weight_bytes: float
    quantized: float = 0.0
    """Bytes per element of the quantised input, where the row's kernels include that; else 0."""


_FP4_BYTES = 0.5 + 1 / 16
"""Blocks of 16 share a scale of one byte."""
_FP8, _FP4 = "float8_e4m3fn", "float4_e2m1fn"

OPERANDS: dict[str, Operands] = {
    "bfloat16": Operands(dtype="bfloat16", input_bytes=2, weight_bytes=2),
    "bf16": Operands(dtype="bfloat16", input_bytes=2, weight_bytes=2),
    "fp16": Operands(dtype="float16", input_bytes=2, weight_bytes=2),
    "fp32": Operands(dtype="float32", input_bytes=4, weight_bytes=4),
    "fp8": Operands(dtype=_FP8, input_bytes=1, weight_bytes=1, quantized=1),
    "fp8_static": Operands(dtype=_FP8, input_bytes=1, weight_bytes=1, quantized=1),
    "fp8_block": Operands(dtype=_FP8, input_bytes=1, weight_bytes=1, quantized=1),
    "nvfp4": Operands(
        dtype=_FP4, input_bytes=_FP4_BYTES, weight_bytes=_FP4_BYTES, quantized=_FP4_BYTES
    ),
    "int8_wo": Operands(dtype="bfloat16", input_bytes=2, weight_bytes=1),
    "int4_wo": Operands(dtype="bfloat16", input_bytes=2, weight_bytes=0.5),
    "sq": Operands(dtype="int8", input_bytes=1, weight_bytes=1),
    "fp4": Operands(dtype=_FP4, input_bytes=0.5 + 1 / 32, weight_bytes=0.5 + 1 / 32),
    "fp8 blockscale": Operands(dtype=_FP8, input_bytes=1, weight_bytes=1),
    "int8/fp8 (a8w8) float8_e4m3fn": Operands(dtype=_FP8, input_bytes=1, weight_bytes=1),
    "int8/fp8 (a8w8) int8": Operands(dtype="int8", input_bytes=1, weight_bytes=1),
}
"""Operands by what files call them."""


def library_of_stack(dtype: str, fields: Mapping[str, str], architecture: str) -> str:
    """Return whose kernels a row's product launches: a ``library`` of ``Product``."""
    framework, kernel = fields.get("framework", ""), fields.get("kernel", "").lower()
    if dtype == "fp8_block" or "deepgemm" in fields.get("impl", "").lower():
        return "blocks"
    if dtype not in ("fp8", "fp8_static") or framework not in ("vllm", "sglang"):
        return "blas"
    # SGLang took over vLLM's rule on Hopper when it named its kernel; vLLM on Blackwell's desktops
    # had SGLang's before it had tiles for few rows, and named its own.
    if architecture == "sm120" and "cutlassfp8" not in kernel:
        return "sglang"
    return "sglang_before" if architecture == "sm90" and kernel == "sglang" else framework


def quantize(
    fields: Mapping[str, str], rows: int, columns: int, written_bytes: float, cold: float
) -> LibraryKernel:
    """Return the launch of an engine that quantizes an input of 16 bits as a row's dtype says.

    ``written_bytes`` are of an element of the result, ``cold`` is the share of the input that comes
    from HBM.
    """
    name = f"quantize_input_{fields['framework']}_{fields['dtype']}"
    return quantize_rows(name, rows, columns, written_bytes, cold)


def quantize_by_rows(rows: int, columns: int, written_bytes: float, cold: float) -> LibraryKernel:
    """Return the same where each row gets a scale of its own."""
    return scale_and_quantize_rows(_BY_ROWS, rows, columns, written_bytes, cold, 0.0)


def choices_of(
    product: Product, dtype: str, fields: Mapping[str, str], sip: SipSpec, library: KernelLibrary
) -> tuple[tuple[LibraryKernel, ...], ...]:
    """Return the launches of a row's product, of which the fastest is taken.

    Raises:
        NotModeledError: The architecture has no such kernels.
    """
    if (fields.get("framework"), dtype) == ("sglang", "int8_wo"):
        raise NotModeledError(
            "SGLang leaves int8_wo to torchao, whose operations a row does not say"
        )
    aiter = _of_aiter(dtype, fields, library)
    if not aiter:
        whose = library_of_stack(dtype, fields, library.architecture)
        choices = product_candidates(replace(product, library=whose), sip, library)
        names = {kernel.name for choice in choices for kernel in choice}
        if missing := names - set(library.names()):
            raise NotModeledError(f"{library.architecture} has no products {min(missing)}")
        return choices
    named = named_tiles(fields["impl"], aiter, product.b_size)
    if named is None:
        choices = product_candidates(product, sip, library)
    else:
        tile, splits = named
        choices = tuple(tiled_product(product, tile, split, aiter, sip) for split in splits)
    return tuple((replace(choice[0], name=aiter), *choice[1:]) for choice in choices)


def _of_aiter(dtype: str, fields: Mapping[str, str], library: KernelLibrary) -> str:
    """Return the name of the constants of AITER's kernel; none where torch multiplies.

    Raises:
        NotModeledError: The dtype, or its maker, has none.
    """
    if "aiter" not in fields.get("source", "") or maker_of(fields["impl"]) == "torch":
        return ""
    stack = f"aiter_{re.sub(r'[^a-z0-9]+', '_', dtype.lower()).strip('_')}"
    wanted = f"{stack}_{maker_of(fields['impl'])}"
    if wanted not in library.names():
        raise NotModeledError(f"{library.architecture} has no products of {wanted}")
    return wanted
