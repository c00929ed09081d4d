"""Serving stacks' experts: which kernels each launches, and what its releases do differently."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.accuracy.rows import Row
from kernbench.library_kernels import CUTLASS, DEEPGEMM, MARLIN, ExpertTiles
from validation.kernels import MoeKernels
from validation.predictors.libraries.expert_loads import Others


@dataclass(frozen=True, slots=True)
class ExpertFormat:
    """What a row's dtype says: what is multiplied, and bytes of elements with their scales."""

    short: str
    dtype: str
    row_bytes: float
    weight_bytes: float


FORMATS = {
    "bfloat16": ExpertFormat("bf16", "bfloat16", 2, 2),
    "fp8": ExpertFormat("fp8", "float8_e4m3fn", 1, 1),
    "fp8_block": ExpertFormat("fp8_block", "float8_e4m3fn", 1 + 4 / 128, 1),
    "nvfp4": ExpertFormat("nvfp4", "float4_e2m1fn", 0.5 + 1 / 16, 0.5 + 1 / 16),
    "int4_wo": ExpertFormat("int4", "bfloat16", 2, 0.5 + 2 / 128),
    "w4a16_mxfp4": ExpertFormat("mxfp4", "bfloat16", 2, 0.5 + 1 / 32),
    "w4a8_mxfp4_mxfp8": ExpertFormat("mxfp8", "float8_e4m3fn", 1 + 1 / 32, 0.5 + 1 / 32),
    "w4afp8": ExpertFormat("w4afp8", "float8_e4m3fn", 1, 0.5 + 2 / 128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStack:
    """How one stack runs its experts, and what it does with the rows of other ranks' experts."""

    has: str
    """In the kernel's name."""
    kernels: MoeKernels
    others: Others = Others.TAKEN_OUT
    own_tokens: bool = False


def _stack(
    has: str, kernels: MoeKernels, others: Others = Others.TAKEN_OUT, *, own_tokens: bool = False
) -> ExpertStack:
    return ExpertStack(has=has, kernels=kernels, others=others, own_tokens=own_tokens)


_TRITON = MoeKernels(
    products=ExpertTiles(
        name="triton_moe", row_tiles=(16, 32, 64, 128), columns=(64,), depth=64, resident=3
    ),
    routing="moe_align",
)
_MARLIN = MoeKernels(products=MARLIN, routing="moe_align")
_WNA16 = MoeKernels(
    products=ExpertTiles(
        name="wna16_moe", row_tiles=(16, 32, 64), columns=(64,), depth=64, resident=3
    ),
    routing="moe_align",
)
_CUTLASS = MoeKernels(
    products=CUTLASS,
    copies_rows=True,
    steps="cutlass_steps",
    routing="cutlass_routing",
    choosing="cutlass_choice",
    sorting="cutlass_sort",
)
_TRTLLM_GEN = MoeKernels(
    products=ExpertTiles(
        name="trtllm_gen_moe", row_tiles=(8, 16, 32, 64, 128), columns=(128,), depth=128,
        pipelined=True,
    ),
    activates_apart=False,
    steps="trtllm_gen_steps",
    routing="trtllm_gen_routing",
)  # fmt: skip
_DEEPGEMM = MoeKernels(
    products=ExpertTiles(
        name="deepgemm_moe", row_tiles=(64, 128), columns=(128,), depth=128, resident=1
    ),
    copies_rows=True, routing="deepgemm_routing", choosing="cutlass_choice",
    sorting="deepgemm_sort",
)  # fmt: skip
_CUTEDSL = MoeKernels(
    products=ExpertTiles(
        name="cutedsl_moe", row_tiles=(128,), columns=(128,), depth=256, resident=1, pipelined=True
    ),
    copies_rows=True,
    steps="cutedsl_steps",
)
_DEEPEP = MoeKernels(products=DEEPGEMM, steps="deepep_steps")
_UNTUNED = _CUTLASS.with_tiles(name="flashinfer_cutlass_moe")

# In the order in which they are looked for: the first whose text a kernel's name has.
STACKS = (
    _stack("deepepmoe", _DEEPEP),
    _stack("cutedsl", _CUTEDSL),
    _stack("sglang_marlin", _MARLIN, Others.COMPUTED, own_tokens=True),
    _stack("vllm_marlin_int4", _WNA16, Others.ZEROED),
    _stack("marlin", _MARLIN),
    _stack("flashinfer_trtllm", _TRTLLM_GEN),
    _stack("mxfp4_flashinfer", _TRTLLM_GEN),
    _stack("flashinfer_mxfp4", _TRTLLM_GEN),
    _stack("vllm_mxfp4_moe", _TRTLLM_GEN),
    _stack("min_latency", _TRTLLM_GEN),
    _stack("flashinfer_cutlass", _UNTUNED),
    _stack("triton_fp8_block", _TRITON.with_tiles(name="trtllm_triton_moe", resident=2)),
    _stack("deepgemm", _DEEPGEMM),
    _stack("sglang_fused_moe_triton", _TRITON, Others.ZEROED, own_tokens=True),
    _stack("triton_tritonexperts", _TRITON, Others.ZEROED),
    _stack("triton", _TRITON, Others.ZEROED),
    _stack("vllm_fused_moe", _TRITON, Others.ZEROED),
    _stack("moe_torch_flow", _CUTLASS),
)


_UNGATED = {("2688", "1856"), ("4096", "2688"), ("2048", "5120"), ("8192", "5120")}
"""Hidden and inner size of Nemotron 3's experts, whose activation is the square of a ReLU."""
_READ_ACTIVATION = ("flashinfer", "unquantized")
"""In names of kernels that the source gave the model's activation; others ran with a gate."""


def is_gated(row: Row) -> bool:
    """Return whether the up projection that a row measured has a gate."""
    kernel = row.fields["kernel"]
    if "nongated" in kernel:
        return False
    sizes = row.fields["hidden_size"], row.fields["inter_size"]
    reads = row.dtype == "bfloat16" and any(name in kernel for name in _READ_ACTIVATION)
    return not (reads and sizes in _UNGATED)
