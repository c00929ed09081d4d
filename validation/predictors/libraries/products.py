"""Which kernels of vendors' libraries a measured product launches.

A serving stack reaches one of a few libraries: a BLAS with tiles of all sizes that cuts K where
tiles are few, CUTLASS and DeepGEMM with their own lists that never cut it, AITER with kernels tuned
per shape. The lists are by architecture; the constants are by stack, dtype and kernel. Where the
source of a stack names one tile per shape, that tile is taken, and not the fastest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product

from kernbench.hardware import KernelLibrary
from validation.kernels import GemmKernel, LibraryTile
from validation.predictors.libraries.aiter_names import maker_of, named_tiles, tile_shares
from validation.predictors.libraries.deepgemm_rule import deepgemm_tile
from validation.predictors.libraries.tile_rules import FP8_RULES, ruled_tile
from validation.predictors.library_rows import NotModeledError


class Maker(StrEnum):
    """Whose tiles a kernel has."""

    BLAS = "blas"
    CUTLASS = "cutlass"
    DEEPGEMM = "deepgemm"
    FP4 = "fp4"
    ROCM = "rocm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What a dtype of a row says of the operands."""

    dtype: str
    """The dtype that the matrix engine multiplies."""
    input_bytes: float
    weight_bytes: float
    quantized: float = 0.0
    """Bytes per element of the quantised input, where the row's kernels include that; else 0."""
    simple_per_result: float = 0.0
    simple_per_weight: float = 0.0


_OF_DEEPGEMM = ("sglang_fp8_block_sglang_deepgemm_gemm_nt_f8f8bf16",)
"""Kernels of a release whose rule is known."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """How a kernel's trips, tiles and memory work beside each other."""

    pipelined: bool = False
    overlap: float = 3.0
    resident: int = 1


_FLOWS: Mapping[tuple[str, str], _Flow] = {
    ("sm100", "sglang_fp8_block_sglang"): _Flow(pipelined=True, overlap=2.0),
    ("sm100", "sglang_fp8_sglang"): _Flow(pipelined=True, overlap=2.0),
    ("sm100", "sglang_fp8_sglang_sgl_kernel_fp8_scaled_mm"): _Flow(pipelined=True, overlap=2.0),
    ("sm100", "trtllm_fp8_block_deepgemm"): _Flow(pipelined=True, overlap=2.0),
    ("sm100", "trtllm_fp8_static_torch_flow"): _Flow(pipelined=True),
    ("sm100", "trtllm_fp8_torch_flow"): _Flow(pipelined=True, overlap=2.0),
    ("sm100", "trtllm_nvfp4_torch_flow"): _Flow(pipelined=True, resident=2),
    ("sm100", "vllm_fp8_cutlassfp8scaledmmlinearkernel"): _Flow(pipelined=True, overlap=2.0),
    ("sm100", "vllm_nvfp4_flashinfercutedslnvfp4linearkernel"): _Flow(pipelined=True, overlap=2.0),
    ("sm100", "vllm_nvfp4_vllm_default"): _Flow(pipelined=True, overlap=2.0),
    ("sm90", "sglang_fp8_block_sglang_deepgemm_gemm_nt_f8f8bf16"): _Flow(
        pipelined=True, overlap=5.0
    ),
    ("sm90", "sglang_fp8_sglang_sgl_kernel_fp8_scaled_mm"): _Flow(pipelined=True),
    ("sm90", "trtllm_fp8_torch_flow"): _Flow(pipelined=True, overlap=5.0),
    ("sm90", "vllm_fp8_block_vllm_default"): _Flow(pipelined=True, overlap=5.0),
    ("sm90", "vllm_fp8_vllm_default"): _Flow(pipelined=True),
}
"""Flows by architecture and kernel, where rows that fits may use say so: on folds of them, other
flows are at least 1.5 % further off."""
_NARROW_OF_FEW = frozenset({("sm100", "sglang_nvfp4_sglang"), ("sm100", "vllm_nvfp4_vllm_default")})
"""CUTLASS kernels for fp4 of serving stacks, whose tiles have half the columns where rows are few:
from 149 tiles of 64 columns on, products of so few rows take two rounds of B200's PEs."""
_FEW_ROWS = 128
_FEW = (LibraryTile(m=128, n=64),)
_MANY = (
    *(LibraryTile(m=128, n=n) for n in (128, 192, 256)),
    *(LibraryTile(m=256, n=n, pes=2) for n in (64, 128, 192, 256)),
)
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
    "int8_wo": Operands(dtype="bfloat16", input_bytes=2, weight_bytes=1, simple_per_weight=1),
    "int4_wo": Operands(dtype="bfloat16", input_bytes=2, weight_bytes=0.5, simple_per_weight=1),
    "sq": Operands(dtype="int8", input_bytes=1, weight_bytes=1),
    "fp4": Operands(dtype=_FP4, input_bytes=0.5 + 1 / 32, weight_bytes=0.5 + 1 / 32),
    "fp8 blockscale": Operands(dtype=_FP8, input_bytes=1, weight_bytes=1),
    "int8/fp8 (a8w8) float8_e4m3fn": Operands(dtype=_FP8, input_bytes=1, weight_bytes=1),
    "int8/fp8 (a8w8) int8": Operands(dtype="int8", input_bytes=1, weight_bytes=1),
}
"""Operands by what files call them."""


def kernel_name(library: KernelLibrary, dtype: str, fields: Mapping[str, str]) -> str:
    """Return the name of the product's constants.

    A stack's kernel that has no entry takes those of the stack's first one for the dtype.

    Raises:
        NotModeledError: The architecture has no products of the stack in that dtype.
    """
    if "framework" in fields:
        stack = f"{fields['framework']}_{dtype}"
        wanted = f"{stack}_{_label(fields.get('kernel', ''))}"
    elif dtype in OPERANDS and "aiter" in fields["source"]:
        stack = f"aiter_{_plain(dtype)}"
        wanted = f"{stack}_{maker_of(fields['impl'])}"
    else:
        stack = wanted = f"blas_{dtype}"
    names = [name for name in _products(library) if name == stack or name.startswith(f"{stack}_")]
    if not names:
        raise NotModeledError(f"{library.architecture} has no products of {stack}")
    return wanted if wanted in names else _nearest(wanted, names)


def _nearest(wanted: str, texts: list[str]) -> str:
    """Return the name that ``wanted`` is a variant of, else the first."""
    return max((name for name in texts if wanted.startswith(name)), default=min(texts), key=len)


def quantize_name(kernel: str) -> str:
    """Return the name of the constants of the kernel that quantises a product's input."""
    return f"quantize_for_{kernel}"


def gemm_kernel(
    name: str,
    dtype: str,
    architecture: str,
    result: tuple[int, int],
    impl: str = "",
    depth: tuple[int, int] | None = None,
) -> GemmKernel:
    """Return the structure of the kernel that gives a ``result`` of so many rows and columns.

    ``impl`` is what the source calls it, which may name its tile; ``depth`` is K and the number of
    PEs, without which DeepGEMM's own rule is not known, and its fastest tile is taken.
    """
    operands = OPERANDS[dtype]
    shares = tile_shares(name)
    named = named_tiles(impl, operands.weight_bytes, shares) if shares else ()
    rules = FP8_RULES.get((architecture, _rule_of(name, architecture)), ())
    if named:
        tiles = named
    elif depth and architecture == "sm90" and name in _OF_DEEPGEMM:
        tiles = (deepgemm_tile(*result, *depth),)
    elif rules and dtype.startswith("fp8") and dtype != "fp8_block":
        tiles = (ruled_tile(rules, *result, depth[0] if depth else 0),)
    elif (architecture, name) in _NARROW_OF_FEW:
        tiles = _FEW if result[0] <= _FEW_ROWS else _MANY
    else:
        tiles = _tiles(_maker(name, dtype, architecture), architecture)
    flow = _FLOWS.get((architecture, name), _Flow())
    return GemmKernel(
        name=name,
        tiles=tiles,
        sum_name="sum_of_parts",
        simple_per_result=operands.simple_per_result,
        simple_per_weight=operands.simple_per_weight,
        resident=shares.resident if named and shares else flow.resident,
        overlap=flow.overlap,
        pipelined=flow.pipelined,
    )


def _products(library: KernelLibrary) -> list[str]:
    family = library.families.get("gemm")
    return [] if family is None else sorted(family.kernels)


def _label(kernel: str) -> str:
    """Return what a stack calls its kernel, without the place in a network that ran it."""
    return _plain(re.sub(r"^trt_flow_/|_L\d+/.*$", "", kernel))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _rule_of(name: str, architecture: str) -> str:
    """Return whose rule names the tiles of a stack's CUTLASS kernels; none where it is unknown."""
    if name.startswith("sglang"):
        # SGLang took over the rule of vLLM on Hopper when it named its kernel.
        return "vllm" if architecture == "sm90" and "sgl_kernel" in name else "sglang"
    if architecture == "sm100" and "cutlassfp8" not in name:
        return ""
    if name.startswith("vllm"):
        return "sglang" if architecture == "sm120" and "cutlassfp8" not in name else "vllm"
    return ""


def _maker(name: str, dtype: str, architecture: str) -> Maker:
    if architecture.startswith("gfx"):
        return Maker.ROCM
    if dtype == "nvfp4":
        return Maker.FP4
    if dtype == "fp8_block":
        return Maker.DEEPGEMM
    if dtype == "sq":
        # TensorRT-LLM's smooth quantisation is CUTLASS, and never cuts K.
        return Maker.CUTLASS
    if dtype.startswith("fp8") and not name.startswith(("trtllm", "blas")):
        return Maker.CUTLASS
    return Maker.BLAS


_SPLITS = (1, 2, 4, 8, 16)


@cache
def _tiles(maker: Maker, architecture: str) -> tuple[LibraryTile, ...]:
    if architecture.startswith("gfx"):
        return _grid((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), _SPLITS)
    if architecture == "sm100":
        return _blackwell(maker)
    if architecture == "sm90":
        return _hopper(maker)
    if maker is Maker.BLAS:
        return _grid((16, 32, 64, 128, 256), (64, 128, 256), _SPLITS)
    if maker is Maker.FP4:
        return _grid((128,), (128,))
    return _grid((16, 32, 64, 128), (128, 256))


def _blackwell(maker: Maker) -> tuple[LibraryTile, ...]:
    widths = (16, 32, 64, 128, 192, 256)
    pairs = tuple(LibraryTile(m=256, n=n, pes=2) for n in widths[2:])
    if maker is Maker.FP4:
        return _grid((128,), (128, 256)) + pairs
    if maker is Maker.CUTLASS:
        return _grid((128,), widths[1:]) + pairs
    return _grid((64, 128), widths, _SPLITS if maker is Maker.BLAS else (1,)) + pairs


def _hopper(maker: Maker) -> tuple[LibraryTile, ...]:
    wide = (LibraryTile(m=256, n=128),)
    if maker is Maker.DEEPGEMM:
        return _grid((64, 128), tuple(range(16, 257, 16))) + wide
    splits = _SPLITS if maker is Maker.BLAS else (1,)
    return _grid((64, 128), (16, 32, 64, 128, 192, 256), splits) + wide


def _grid(
    heights: tuple[int, ...], widths: tuple[int, ...], splits: tuple[int, ...] = (1,)
) -> tuple[LibraryTile, ...]:
    """Return tiles of these heights and widths, but none whose results fill the registers."""
    return tuple(
        LibraryTile(m=m, n=n, splits=parts)
        for m, n, parts in product(heights, widths, splits)
        if m * n <= 256 * 256
    )
