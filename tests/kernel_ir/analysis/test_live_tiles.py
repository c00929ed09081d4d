"""Which accumulators and loads are counted together, on texts whose sums are known."""

from __future__ import annotations

import pytest

from kernbench.kernel_ir import TcmUse, tcm_use
from tests.kernel_ir.cases import kernel

SCORES, SUM = 64 * 32 * 4, 64 * 128 * 4
KEYS, VALUES = 128 * 32 * 2, 32 * 128 * 2
OTHER = SCORES
"""The largest tile that is neither a load of a loop nor a product: the weights."""

PARAMS = (
    "%n: i32, %q: tensor<64x128xf16>, %kp: tensor<128x32x!tt.ptr<f16>>, "
    "%vp: tensor<32x128x!tt.ptr<f16>>, %out: tensor<64x128x!tt.ptr<f32>>"
)
HEAD = """
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %none = arith.constant dense<0.000000e+00> : tensor<64x32xf32>
    %nothing = arith.constant dense<0.000000e+00> : tensor<64x128xf32>
"""
DOT_SCORES = "tt.dot %q, {k}, %none : tensor<64x128xf16> * tensor<128x32xf16> -> tensor<64x32xf32>"
DOT_SUM = "tt.dot {p}, {v}, {acc} : tensor<64x32xf16> * tensor<32x128xf16> -> tensor<64x128xf32>"


def step(index: str, acc: str) -> str:
    """Return one block of attention: scores, weights, and the sum ``%acc{index}`` of values."""
    k, v, s, p, h = (f"%{name}{index}" for name in "kvsph")
    return f"""
      {k} = tt.load %kp : tensor<128x32x!tt.ptr<f16>>
      {v} = tt.load %vp : tensor<32x128x!tt.ptr<f16>>
      {s} = {DOT_SCORES.format(k=k)}
      {p} = math.exp2 {s} : tensor<64x32xf32>
      {h} = arith.truncf {p} : tensor<64x32xf32> to tensor<64x32xf16>
      %acc{index} = {DOT_SUM.format(p=h, v=v, acc=acc)}
"""


def loop(index: str, init: str, steps: int = 1) -> str:
    """Return a loop over blocks that adds to ``init`` and gives ``%r{index}``."""
    acc, body = f"%a{index}", ""
    for number in range(steps):
        body += step(f"{index}_{number}", acc)
        acc = f"%acc{index}_{number}"
    return f"""
    %r{index} = scf.for %i{index} = %c0 to %n step %c1 iter_args(%a{index} = {init})
        -> (tensor<64x128xf32>)  : i32 {{
{body}
      scf.yield {acc} : tensor<64x128xf32>
    }}
"""


def store(value: str) -> str:
    return f"    tt.store %out, {value} : tensor<64x128x!tt.ptr<f32>>"


def use(body: str, num_stages: int = 1) -> TcmUse:
    return tcm_use(kernel(HEAD + body, PARAMS), num_stages)


@pytest.mark.adr("0004-D6")
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_loops_one_after_the_other_share_what_they_hold(stages: int) -> None:
    one = use(loop("x", "%nothing") + store("%rx"), stages)
    assert one.staged_bytes == (KEYS + VALUES) * stages
    assert one.total_bytes == one.staged_bytes + SCORES + SUM + OTHER
    # The second loop goes on with the first one's sum.
    two = use(loop("x", "%nothing") + loop("y", "%rx") + store("%ry"), stages)
    assert (two.total_bytes, two.staged_bytes) == (one.total_bytes, one.staged_bytes)
    assert sum(tile.total_bytes for tile in two.tiles) == two.total_bytes


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_steps_of_an_unrolled_loop_add_to_one_sum(steps: int) -> None:
    result = use(loop("x", "%nothing", steps) + store("%rx"))
    accumulators = [tile for tile in result.tiles if tile.what.startswith("accumulator")]
    assert sum(tile.total_bytes for tile in accumulators) == SCORES + SUM
    # What the steps load may all be on its way at once.
    assert result.staged_bytes == (KEYS + VALUES) * steps


def test_sums_that_are_both_used_later_are_both_held() -> None:
    both = loop("x", "%nothing") + loop("y", "%nothing") + store("%rx") + "\n" + store("%ry")
    assert use(both).total_bytes == KEYS + VALUES + 2 * SUM + SCORES + OTHER
    one_by_one = loop("x", "%nothing") + store("%rx") + loop("y", "%nothing") + store("%ry")
    assert use(one_by_one).total_bytes == KEYS + VALUES + SUM + SCORES + OTHER


def test_a_sum_that_is_still_wanted_is_not_added_to_in_place() -> None:
    load = "    %h = arith.constant dense<1.000000e+00> : tensor<64x32xf16>\n"
    load += "    %v = arith.constant dense<1.000000e+00> : tensor<32x128xf16>\n"
    first = f"    %d = {DOT_SUM.format(p='%h', v='%v', acc='%nothing')}\n"
    second = f"    %e = {DOT_SUM.format(p='%h', v='%v', acc='%d')}\n"
    assert use(load + first + second + store("%e")).total_bytes == SUM
    both = load + first + second + store("%e") + "\n" + store("%d")
    assert use(both).total_bytes == 2 * SUM


def test_a_sum_is_scaled_in_place_and_goes_through_a_branch() -> None:
    body = """
    %h = arith.constant dense<1.000000e+00> : tensor<64x32xf16>
    %v = arith.constant dense<1.000000e+00> : tensor<32x128xf16>
    %flag = arith.cmpi slt, %c0, %n : i32
    %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %nothing) -> (tensor<64x128xf32>)  : i32 {
      %b = arith.mulf %a, %a : tensor<64x128xf32>
      %c = scf.if %flag -> (tensor<64x128xf32>) {
        %d = DOT
        scf.yield %d : tensor<64x128xf32>
      } else {
        scf.yield %b : tensor<64x128xf32>
      }
      scf.yield %c : tensor<64x128xf32>
    }
""".replace("DOT", DOT_SUM.format(p="%h", v="%v", acc="%b"))
    result = use(body + store("%r"))
    # The product by %a is the largest other tile.
    assert result.total_bytes == SUM + SUM


def test_sums_that_a_loop_swaps_are_two() -> None:
    body = """
    %h = arith.constant dense<1.000000e+00> : tensor<64x32xf16>
    %v = arith.constant dense<1.000000e+00> : tensor<32x128xf16>
    %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %nothing, %b = %nothing)
        -> (tensor<64x128xf32>, tensor<64x128xf32>)  : i32 {
      %d = DOT_A
      %e = DOT_B
      scf.yield %e, %d : tensor<64x128xf32>, tensor<64x128xf32>
    }
"""
    for name, acc in (("DOT_A", "%a"), ("DOT_B", "%b")):
        body = body.replace(name, DOT_SUM.format(p="%h", v="%v", acc=acc))
    result = use(body + store("%r#0") + "\n" + store("%r#1"))
    assert result.total_bytes == 2 * SUM
