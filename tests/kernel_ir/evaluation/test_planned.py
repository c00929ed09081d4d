"""Which integers are planned, and which are left to the math engine."""

from __future__ import annotations

import pytest

from kernbench.commands import DmaRead, IndexTile, KernelTrace, MaskTile, Math, walk
from kernbench.kernel_ir import evaluate, parse_module
from kernbench.kernel_ir.evaluation.planned import planned_values

HEAD = """
module {
  tt.func public @k(%x: !tt.ptr<i32>, %n: i32) {
    %c32 = arith.constant 32 : i32
    %key = arith.constant dense<-1640531527> : tensor<32xi32>
    %mask = arith.constant dense<31> : tensor<32xi32>
    %pid = tt.get_program_id x : i32
    %start = arith.muli %pid, %c32 : i32
    %lane = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
    %first = tt.splat %start : i32 -> tensor<32xi32>
    %at = arith.addi %first, %lane : tensor<32xi32>
    %base = tt.splat %x : !tt.ptr<i32> -> tensor<32x!tt.ptr<i32>>
"""
TAIL = """
    tt.return
  }
}
"""
HASHED = """
    %high = tt.mulhiui %at, %key : tensor<32xi32>
    %low = arith.muli %at, %key : tensor<32xi32>
    %hash = arith.xori %high, %low : tensor<32xi32>
"""
STORED = """
    %to = tt.addptr %base, %at : tensor<32x!tt.ptr<i32>>, tensor<32xi32>
    tt.store %to, %hash : tensor<32x!tt.ptr<i32>>
"""
AS_ADDRESS = """
    %wrapped = arith.andi %hash, %mask : tensor<32xi32>
    %from = tt.addptr %base, %wrapped : tensor<32x!tt.ptr<i32>>, tensor<32xi32>
    %value = tt.load %from : tensor<32x!tt.ptr<i32>>
    tt.store %from, %value : tensor<32x!tt.ptr<i32>>
"""


def trace(text: str, programs: int = 8) -> KernelTrace:
    module = parse_module(HEAD + text + TAIL)
    return evaluate(module, (programs, 1, 1), {1: 100}, num_warps=4, num_stages=1)


def math_of(kernel_trace: KernelTrace) -> list[str]:
    return [c.op for c in walk(kernel_trace.groups[0].body) if isinstance(c, Math)]


@pytest.mark.adr("0004-D8")
def test_a_hash_that_is_only_stored_is_computed_on_data() -> None:
    assert math_of(trace(HASHED + STORED)) == ["tt.mulhiui", "arith.muli", "arith.xori"]


@pytest.mark.adr("0004-D8")
def test_a_hash_that_is_an_address_is_planned() -> None:
    result = trace(HASHED + AS_ADDRESS)
    assert math_of(result) == []
    (load,) = (c for c in walk(result.groups[0].body) if isinstance(c, DmaRead))
    assert load.source.gather is None


def test_a_hash_of_elements_alone_is_planned_whatever_the_grid() -> None:
    text = HASHED.replace("%at", "%lane") + STORED
    (store,) = trace(text).groups[0].body
    assert isinstance(store.value, IndexTile)  # type: ignore[union-attr]


@pytest.mark.adr("0004-D8")
@pytest.mark.parametrize(
    ("use", "is_planned"),
    [
        ("%big = arith.cmpi sgt, %hash, %key : tensor<32xi32>\n"
         "%picked = arith.select %big, %hash, %at : tensor<32xi1>, tensor<32xi32>\n"
         "tt.store %to, %picked : tensor<32x!tt.ptr<i32>>", False),
        ("%float = arith.uitofp %hash : tensor<32xi32> to tensor<32xf32>", False),
        ("%big = arith.cmpi sgt, %hash, %key : tensor<32xi32>\n"
         "tt.store %to, %at, %big : tensor<32x!tt.ptr<i32>>", True),
        ("%other = tt.addptr %to, %hash : tensor<32x!tt.ptr<i32>>, tensor<32xi32>", True),
    ],
)  # fmt: skip
def test_what_is_planned_is_told_by_its_uses(use: str, is_planned: bool) -> None:
    to = "%to = tt.addptr %base, %at : tensor<32x!tt.ptr<i32>>, tensor<32xi32>\n"
    module = parse_module(HEAD + HASHED + to + use + TAIL)
    named = {value.name: value for value in planned_values(module)}
    assert ("%hash" in named) is is_planned
    assert "%at" in named


def test_what_goes_round_a_loop_is_planned() -> None:
    text = """
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %last = scf.for %i = %zero to %n step %one iter_args(%hash = %at) -> (tensor<32xi32>) : i32 {
      %next = arith.xori %hash, %key : tensor<32xi32>
      scf.yield %next : tensor<32xi32>
    }
"""
    module = parse_module(HEAD + text + TAIL)
    assert {"%next", "%at"} <= {value.name for value in planned_values(module)}


def test_a_mask_of_mixed_bits_is_known() -> None:
    text = """
    %even = arith.andi %at, %mask : tensor<32xi32>
    %on = arith.cmpi slt, %even, %key : tensor<32xi32>
    %to = tt.addptr %base, %at : tensor<32x!tt.ptr<i32>>, tensor<32xi32>
    tt.store %to, %at, %on : tensor<32x!tt.ptr<i32>>
"""
    result = trace(text)
    assert math_of(result) == []
    assert not any(isinstance(c, MaskTile) for c in walk(result.groups[0].body))
