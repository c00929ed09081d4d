"""DeepGEMM's products: operands in FP8 with scales of blocks, or in bfloat16, of rows of experts.

Scales are float32, as on Hopper; those packed to bytes of exponents are refused. What the package
keeps for its compiler (``set_num_sms``, ``set_pdl``) changes nothing here.

Source: DeepGEMM's README and ``tests/test_fp8.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernbench.library_kernels import DEEPGEMM
from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    as_product,
    defines,
    launches,
    makes,
)
from kernbench.torch_bridge.replaced.extension_modules.grouped import groups_of
from kernbench.torch_bridge.replaced.extension_modules.quantized import over_blocks
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import numbers_of

_ROWS = 128
"""What the rows of an expert are filled up to: the height of a tile."""
_TMA_BYTES = 16
_HOW = "compiled_dims disable_ue8m0_cast recipe recipe_a recipe_b"


def _wide(x: Tensor, scales: Tensor | None) -> Tensor:
    if scales is None:
        return x.float()
    if not scales.is_floating_point():
        raise UnsupportedTorchError(
            "DeepGEMM with scales packed to exponents (UE8M0): kernbench defines scales in "
            "float32; leave VLLM_USE_DEEP_GEMM_E8M0 out"
        )
    return x.float() * over_blocks(scales.float(), x.shape)


def _transposed(name: str) -> tuple[bool, bool]:
    """Return whether a product's A and B are ``(k, m)`` and ``(k, n)``, by the end of its name."""
    return name[-2] == "t", name[-1] == "n"


def _plain(name: str) -> None:
    a_turned, b_turned = _transposed(name)

    def timing(call: OperatorCall) -> Callable[[int], Any]:
        (m, n), k = call.d.shape, call.a.shape[0 if a_turned else 1]
        sizes = ((1, m, n, k),) if m and n and k else ()
        library = "blas" if "cublaslt" in name else "blocks"
        return as_product(call.func, sizes, call.a.dtype, call.d.dtype, library=library)

    @launches(f"deep_gemm::{name}", takes="a b d c sfa sfb alpha", timing=timing, ignores=_HOW)
    def compute(call: OperatorCall) -> None:
        rows, columns = _wide(call.a, call.sfa), _wide(call.b, call.sfb)
        left = rows.t() if a_turned else rows
        result = left @ (columns if b_turned else columns.t()) * (call.alpha or 1.0)
        call.d.copy_(result if call.c is None else result + call.c.float())


def _as_experts(
    call: OperatorCall, counts: Callable[[], Iterable[int] | None], rows: int
) -> Callable[[int], Any]:
    experts, n, k = call.b.shape[0], call.d.shape[-1], call.a.shape[-1]
    sizes = groups_of(call.func, counts, rows, experts, n, k)
    tiles = None
    if call.a.element_size() == 1:
        # Rows of a contiguous layout come in whole tiles.
        tall = DEEPGEMM.row_tiles[-1:] if call.d.dim() < 3 else DEEPGEMM.row_tiles
        tiles = replace(DEEPGEMM, name=f"{DEEPGEMM.name}_fp8_block", row_tiles=tall)
    return as_product(call.func, sizes, call.a.dtype, call.d.dtype, grouped=True, experts=tiles)


def _contiguous(name: str) -> None:
    _, b_turned = _transposed(name.removesuffix("_contiguous"))

    def timing(call: OperatorCall) -> Callable[[int], Any]:
        experts_of = call.grouped_layout

        def counts() -> list[int] | None:
            numbers = numbers_of(experts_of)
            return None if numbers is None else [*Counter(x for x in numbers if x >= 0).values()]

        return _as_experts(call, counts, call.d.shape[0])

    @launches(
        f"deep_gemm::{name}",
        takes="a b d grouped_layout sfa sfb",
        timing=timing,
        ignores=f"{_HOW} ensure_zero_padding expected_m_for_psum_layout",
    )
    def compute(call: OperatorCall) -> None:
        rows, layout = _wide(call.a, call.sfa), call.grouped_layout
        for expert in layout.unique().tolist():
            if expert >= 0:
                columns = _wide(call.b[expert], None if call.sfb is None else call.sfb[expert])
                row = rows[layout == expert] @ (columns if b_turned else columns.t())
                call.d[layout == expert] = row.to(call.d.dtype)


def _masked(name: str) -> None:
    def timing(call: OperatorCall) -> Callable[[int], Any]:
        counts = call.masked_m
        rows = call.d.shape[0] * call.expected_m
        return _as_experts(call, lambda: numbers_of(counts), rows)

    @launches(
        f"deep_gemm::{name}", takes="a b d masked_m expected_m sfa sfb", timing=timing, ignores=_HOW
    )
    def compute(call: OperatorCall) -> None:
        for expert, count in enumerate(call.masked_m.tolist()):
            rows, columns = (
                _wide(x[expert], None if scales is None else scales[expert])
                for x, scales in ((call.a, call.sfa), (call.b, call.sfb))
            )
            call.d[expert, :count] = (rows[:count] @ columns.t()).to(call.d.dtype)


for _kind in ("fp8_fp4", "bf16"):
    for _layout in ("nt", "nn", "tn", "tt"):
        _plain(f"{_kind}_gemm_{_layout}")
    _contiguous(f"m_grouped_{_kind}_gemm_nt_contiguous")
    _contiguous(f"m_grouped_{_kind}_gemm_nn_contiguous")
    _masked(f"m_grouped_{_kind}_gemm_nt_masked")
for _layout in ("nt", "nn", "tn", "tt"):
    _plain(f"cublaslt_gemm_{_layout}")


@defines(
    *(f"deep_gemm::{name}" for name in ("_ensure_jit", "init", "shutdown", "set_num_sms")),
    *(f"deep_gemm::{name}" for name in ("set_tc_util", "set_pdl", "set_ignore_compile_dims")),
    "deep_gemm::set_block_size_multiple_of",
    "deep_gemm::use_deterministic_algorithms",
    on_host=True,
    ignores=(
        "library_root_path python_package_name new_num_sms new_tc_util new_enable_pdl new_value "
        "enabled"
    ),
)
def _keeps_nothing(call: OperatorCall) -> None:
    pass


@defines(
    "deep_gemm::get_mk_alignment_for_contiguous_layout",
    "deep_gemm::get_theoretical_mk_alignment_for_contiguous_layout",
    "deep_gemm::get_token_alignment_for_mega_moe",
    "deep_gemm::get_token_alignment_for_nvfp4_mega_moe",
    on_host=True,
    ignores="expected_m",
)
def _alignment(call: OperatorCall) -> int:
    return _ROWS


@defines("deep_gemm::get_num_sms", on_host=True)
def _num_sms(call: OperatorCall) -> int:
    return int(torch.cuda.get_device_properties().multi_processor_count)


def _padded(rows: int, element_size: int) -> int:
    tma_elements = _TMA_BYTES // element_size
    return -(-rows // tma_elements) * tma_elements


@defines("deep_gemm::get_tma_aligned_size", takes="x element_size", on_host=True)
def _aligned(call: OperatorCall) -> int:
    return _padded(call.x, call.element_size)


def _of_columns(call: OperatorCall) -> Any:
    """Return a tensor of the shape of scales whose columns lie one after another."""
    *batch, rows, columns = call.sf.shape
    padded = _padded(rows, call.sf.element_size())
    return call.sf.new_empty(*batch, columns, padded).transpose(-1, -2)[..., :rows, :]


@makes("deep_gemm::get_mn_major_tma_aligned_tensor", takes="sf", result=_of_columns)
def _by_columns(out: Tensor, call: OperatorCall) -> None:
    out.copy_(call.sf)


@defines(
    "deep_gemm::transform_sf_into_required_layout",
    takes="sf",
    shapes=lambda call: call.sf,
    ignores="mn k recipe num_groups is_sfa disable_ue8m0_cast",
)
def _required(call: OperatorCall) -> Tensor:
    capability = current().session.run.machine.spec.cuda_architecture or 0
    if capability >= 100:
        raise UnsupportedTorchError(
            f"{describe(call.func).name} on a device of compute capability {capability / 10}: its "
            "scales are packed exponents, which kernbench does not define; leave DeepGEMM out "
            "(VLLM_USE_DEEP_GEMM=0)"
        )
    # Products here read scales by whatever strides.
    return call.sf
