"""Every operation of TTIR that real kernels use: compiled by Triton, and right by numpy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.kernel_ir import HANDLERS
from tests.integration.op_kernels import ARRAYS, CASES, Case, N

TUTORIALS = """
tt.addptr tt.atomic_cas tt.atomic_rmw tt.broadcast tt.descriptor_load tt.descriptor_store tt.dot
tt.expand_dims tt.extern_elementwise tt.func tt.get_num_programs tt.get_program_id tt.int_to_ptr
tt.load tt.make_range tt.make_tensor_descriptor tt.mulhiui tt.reduce tt.reduce.return tt.reshape
tt.return tt.splat tt.split tt.store tt.trans ttg.barrier llvm.intr.assume
arith.addf arith.addi arith.andi arith.cmpf arith.cmpi arith.constant arith.divf arith.divsi
arith.extf arith.extsi arith.maxnumf arith.minsi arith.mulf arith.muli arith.remsi arith.select
arith.shrui arith.sitofp arith.subf arith.subi arith.truncf arith.trunci arith.xori
math.exp math.exp2 math.log2 math.sqrt scf.condition scf.for scf.if scf.while scf.yield
"""
LIBRARIES = """
arith.divui arith.extui arith.maxsi arith.negf arith.ori arith.remui arith.shli arith.shrsi
arith.uitofp cf.cond_br math.absf math.fma math.log math.rsqrt tt.scan tt.scan.return tt.gather
"""
LANGUAGE_TESTS = """
arith.fptosi arith.fptoui arith.maximumf arith.maxui arith.minimumf arith.minnumf arith.minui
arith.remf cf.br math.absi math.ceil math.cos math.erf math.floor math.sin tt.assert tt.atomic_poll
tt.bitcast tt.call tt.cat tt.clampf tt.descriptor_reduce tt.dot_scaled tt.elementwise_inline_asm
tt.fp_to_fp tt.histogram tt.join tt.map_elementwise tt.map_elementwise.return tt.precise_divf
tt.precise_sqrt tt.print tt.ptr_to_int tt.unsplat ub.poison
"""
BEYOND = "tt.descriptor_gather tt.descriptor_scatter tt.atomic_load tt.atomic_store"
ELSEWHERE = {
    "ub.poison": "below: no kernel asks for it by name",
}
# What Triton's own passes take away, so that TTIR no longer has it: looked for before them.
OP = re.compile(r"\b(?:tt|ttg|arith|math|scf|cf|llvm|ub)\.[a-z_0-9.]+[a-z0-9_]")


def has(needs: str) -> bool:
    return not needs or hasattr(tl, needs)


def run(case: Case) -> tuple[Any, np.ndarray[Any, Any]]:
    expected = np.asarray(case.expected())
    with kernbench.RuntimeContext() as torch:
        tensors = [torch.from_numpy(ARRAYS[name]) for name in case.arguments.split()]
        out = torch.zeros(*expected.shape, dtype=expected.dtype.name)
        # Locks and counters lie behind the result.
        room = torch.zeros(expected.size + 4 * N, dtype=expected.dtype.name)
        target = room if case.kernel.__name__ == "atomics" else out
        compiled = case.kernel[(case.grid,)](*tensors, target, N=N, **case.options)
        reshape = target.numpy().reshape(-1)[: expected.size].reshape(expected.shape)
    return compiled, reshape


# Triton 3.9 is about to let the order of a cat be fixed, and says so.
@pytest.mark.filterwarnings("ignore:tl.cat")
@pytest.mark.parametrize("name", CASES)
def test_an_operation_gives_numpys_numbers(name: str) -> None:
    case = CASES[name]
    if not has(case.needs):
        pytest.skip(f"this Triton has no {case.needs}")
    compiled, result = run(case)
    np.testing.assert_allclose(
        result, case.expected(), rtol=case.tolerance, atol=case.tolerance, equal_nan=True
    )
    text = compiled.asm["source"] + compiled.asm["ttir"]
    missing = set(case.ops.split()) - set(OP.findall(text))
    assert not missing, f"the kernel shows nothing about {sorted(missing)}"


@pytest.mark.parametrize("tier", [TUTORIALS, LIBRARIES, LANGUAGE_TESTS, BEYOND])
def test_every_operation_has_a_kernel(tier: str) -> None:
    covered = {op for case in CASES.values() for op in case.ops.split()}
    assert set(tier.split()) - covered - ELSEWHERE.keys() == set()


@triton.jit
def in_assembly(x, N: tl.constexpr):
    at = tl.arange(0, N)
    y = tl.inline_asm_elementwise(
        "neg.f32 $0, $1;", "=r,r", [tl.load(x + at)], tl.float32, is_pure=True, pack=1
    )
    tl.store(x + at, y)


def test_inline_assembly_is_refused_by_name_and_line() -> None:
    with (
        kernbench.RuntimeContext() as torch,
        pytest.raises(
            kernbench.errors.UnsupportedOpError,
            match=r"tt.elementwise_inline_asm in kernel in_assembly at test_every_op.py:\d+ .*neg",
        ),
    ):
        in_assembly[(1,)](torch.zeros(N), N=N)


def test_poison_is_handled() -> None:
    assert "ub.poison" in HANDLERS


@triton.jit
def checked_add(a, b):
    tl.device_assert(a < 100, "too large to add")
    return a + b


@triton.jit
def checked_sum(x, out, N: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, N)), 0, checked_add))


def test_tritons_checks_in_a_sum_are_left_out_and_a_users_are_refused() -> None:
    with kernbench.RuntimeContext() as torch:
        x, out = torch.ones(N, dtype="i32"), torch.zeros(1, dtype="i32")
        checked_sum[(1,)](x, out, N=N, debug=False)
        assert out.tolist() == [N]
        with pytest.raises(kernbench.errors.UnsupportedOpError, match="does more than arithmetic"):
            checked_sum[(1,)](x, out, N=N, debug=True)
