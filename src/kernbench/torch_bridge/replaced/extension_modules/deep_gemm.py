"""DeepGEMM's products: operands in FP8 with scales of blocks, or in bfloat16, of rows of experts.

Scales are float32, as on Hopper; those packed to bytes of exponents are refused. What the package
keeps for its compiler (``set_num_sms``, ``set_pdl``) changes nothing here.

Source: DeepGEMM's README and ``tests/test_fp8.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    OperatorAsked,
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
_HOW = ("compiled_dims", "disable_ue8m0_cast", "recipe", "recipe_a", "recipe_b")


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

    def timing(func: Any, a: Tensor, d: Tensor, **_: Any) -> Callable[[int], Any]:
        (m, n), k = d.shape, a.shape[0 if a_turned else 1]
        sizes = ((1, m, n, k),) if m and n and k else ()
        return as_product(func, sizes, a.dtype, d.dtype)

    @launches(f"deep_gemm::{name}", timing=timing, ignores=_HOW)
    def compute(
        a: Tensor,
        b: Tensor,
        d: Tensor,
        c: Tensor | None = None,
        sfa: Tensor | None = None,
        sfb: Tensor | None = None,
        alpha: float | None = None,
    ) -> None:
        rows, columns = _wide(a, sfa), _wide(b, sfb)
        left = rows.t() if a_turned else rows
        result = left @ (columns if b_turned else columns.t()) * (alpha or 1.0)
        d.copy_(result if c is None else result + c.float())


def _contiguous(name: str) -> None:
    _, b_turned = _transposed(name.removesuffix("_contiguous"))

    def timing(
        func: Any, a: Tensor, b: Tensor, d: Tensor, grouped_layout: Tensor, **_: Any
    ) -> Callable[[int], Any]:
        def counts() -> list[int] | None:
            numbers = numbers_of(grouped_layout)
            return None if numbers is None else [*Counter(x for x in numbers if x >= 0).values()]

        experts, (m, n) = b.shape[0], d.shape
        sizes = groups_of(func, counts, m, experts, n, a.shape[1])
        return as_product(func, sizes, a.dtype, d.dtype, grouped=True)

    ignores = (*_HOW, "ensure_zero_padding", "expected_m_for_psum_layout")

    @launches(f"deep_gemm::{name}", timing=timing, ignores=ignores)
    def compute(
        a: Tensor,
        b: Tensor,
        d: Tensor,
        grouped_layout: Tensor,
        sfa: Tensor | None = None,
        sfb: Tensor | None = None,
    ) -> None:
        rows = _wide(a, sfa)
        for expert in grouped_layout.unique().tolist():
            if expert >= 0:
                own = grouped_layout == expert
                columns = _wide(b[expert], None if sfb is None else sfb[expert])
                row = rows[own] @ (columns if b_turned else columns.t())
                d[own] = row.to(d.dtype)


def _masked(name: str) -> None:
    def timing(
        func: Any, a: Tensor, d: Tensor, masked_m: Tensor, expected_m: int, **_: Any
    ) -> Callable[[int], Any]:
        experts, _, n = d.shape
        sizes = groups_of(
            func, lambda: numbers_of(masked_m), experts * expected_m, experts, n, a.shape[2]
        )
        return as_product(func, sizes, a.dtype, d.dtype, grouped=True)

    @launches(f"deep_gemm::{name}", timing=timing, ignores=_HOW)
    def compute(
        a: Tensor,
        b: Tensor,
        d: Tensor,
        masked_m: Tensor,
        expected_m: int,
        sfa: Tensor | None = None,
        sfb: Tensor | None = None,
    ) -> None:
        for expert, count in enumerate(masked_m.tolist()):
            parts = [
                _wide(x[expert], None if scales is None else scales[expert])
                for x, scales in ((a, sfa), (b, sfb))
            ]
            d[expert, :count] = (parts[0][:count] @ parts[1].t()).to(d.dtype)


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
    *(f"deep_gemm::{name}" for name in ("set_block_size_multiple_of",)),
    "deep_gemm::use_deterministic_algorithms",
    on_host=True,
    ignores=(
        *("library_root_path", "python_package_name", "new_num_sms", "new_tc_util"),
        *("new_enable_pdl", "new_value", "enabled"),
    ),
)
def _keeps_nothing(asked: OperatorAsked) -> None:
    pass


@defines(
    "deep_gemm::get_mk_alignment_for_contiguous_layout",
    "deep_gemm::get_theoretical_mk_alignment_for_contiguous_layout",
    "deep_gemm::get_token_alignment_for_mega_moe",
    "deep_gemm::get_token_alignment_for_nvfp4_mega_moe",
    on_host=True,
    ignores=("expected_m",),
)
def _alignment(asked: OperatorAsked) -> int:
    return _ROWS


@defines("deep_gemm::get_num_sms", on_host=True)
def _num_sms(asked: OperatorAsked) -> int:
    return int(torch.cuda.get_device_properties().multi_processor_count)


@defines("deep_gemm::get_tma_aligned_size", on_host=True)
def _aligned(asked: OperatorAsked, x: int, element_size: int) -> int:
    tma_bytes = _TMA_BYTES // element_size
    return -(-x // tma_bytes) * tma_bytes


def _of_columns(sf: Tensor, **_: Any) -> Tensor:
    """Return a tensor of the shape of scales whose columns lie one after another."""
    *batch, rows, columns = sf.shape
    tma_bytes = _TMA_BYTES // sf.element_size()
    padded = -(-rows // tma_bytes) * tma_bytes
    return sf.new_empty(*batch, columns, padded).transpose(-1, -2)[..., :rows, :]


@makes("deep_gemm::get_mn_major_tma_aligned_tensor", result=_of_columns)
def _by_columns(out: Tensor, /, sf: Tensor) -> None:
    out.copy_(sf)


@defines(
    "deep_gemm::transform_sf_into_required_layout",
    shapes=lambda sf, **_: sf,
    ignores=("mn", "k", "recipe", "num_groups", "is_sfa", "disable_ue8m0_cast"),
)
def _required(asked: OperatorAsked, sf: Tensor) -> Tensor:
    capability = current().session.run.machine.spec.cuda_architecture or 0
    if capability >= 100:
        raise UnsupportedTorchError(
            f"{describe(asked.func).name} on a device of compute capability {capability / 10}: its "
            "scales are packed exponents, which kernbench does not define; leave DeepGEMM out "
            "(VLLM_USE_DEEP_GEMM=0)"
        )
    # Products here read scales by whatever strides.
    return sf
