"""Which assembly is a function of CUDA's math library."""

from __future__ import annotations

import pytest

from kernbench.kernel_ir.text.assembly import symbol_of


@pytest.mark.parametrize(
    ("text", "constraints", "symbol"),
    [
        ("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", "__nv_fmaf_rn"),
        ("  fma.rz.ftz.f32 $0,$1,$2,$3 ", "=f,f,f,f", "__nv_fmaf_rz"),
        ("rcp.approx.ftz.f32 $0, $1;", "=f,f", "__nv_frcp_rn"),
        ("div.full.f32 $0, $1, $2;", "=f,f,f", "__nv_fdiv_rn"),
        ("add.rm.f32 $0, $1, $2;", "=f,f,f", "__nv_fadd_rd"),
        ("tanh.approx.f32 $0, $1;", "=f,f", "__nv_tanhf"),
        # Saturated, in other registers, in another order, twice, of another type, with a constant.
        ("add.sat.f32 $0, $1, $2;", "=f,f,f", None),
        ("neg.f32 $0, $1;", "=f,f", None),
        ("abs.f32 $0, $1;", "=r,r", None),
        ("sub.f32 $0, $2, $1;", "=f,f,f", None),
        ("fma.rn.f32 $0, $1, $1, $2;", "=f,f,f", None),
        ("abs.f32 $0, $1; abs.f32 $0, $0;", "=f,f", None),
        ("tanh.approx.f16x2 $0, $1;", "=f,f", None),
        ("add.rn.f32 $0, $1, 0f3F800000;", "=f,f", None),
        ("", "=f,f", None),
    ],
)
def test_one_instruction_is_one_function(text: str, constraints: str, symbol: str | None) -> None:
    assert symbol_of(text, constraints, constraints.count(",")) == symbol
