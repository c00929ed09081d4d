from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import KernbenchError
from kernbench.errors import KernelParseError
from kernbench.kernel_ir import Op, parse_module
from tests.kernel_ir.cases import TEXTS, VERSIONS, kernel, module, text
from tests.tiers import examples


def ops_of(body: str, params: str = "%x: !tt.ptr<f32>") -> list[Op]:
    return list(kernel(body, params).kernel.body.entry.ops)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_text_of_every_version_of_triton_parses(path: Path) -> None:
    module = parse_module(path.read_text())
    assert module.kernel.is_public
    assert module.kernel.line.file == "kernels.py"
    for op in module.kernel.body.entry.ops:
        assert all(result.type.text != "?" for result in op.results), op.name


@pytest.mark.parametrize("version", VERSIONS)
def test_parameters_keep_their_order_types_and_attributes(version: str) -> None:
    params = module("matmul", version).kernel.params
    # stride_ak, stride_bn and stride_cn are 1 and vanish.
    assert [param.name for param in params] == [
        "a_ptr",
        "b_ptr",
        "c_ptr",
        "M",
        "N",
        "K",
        "stride_am",
        "stride_bk",
        "stride_cm",
    ]
    assert [param.is_pointer for param in params] == [True] * 3 + [False] * 6
    assert [str(param.type) for param in params[2:4]] == ["!tt.ptr<f16>", "i32"]
    assert params[0].dtype is not None
    assert params[0].dtype.mlir == "f16"
    assert params[0].attrs == {"tt.divisibility": 16}


@pytest.mark.adr("0004-D7")
def test_an_op_in_a_library_function_has_the_line_of_its_caller() -> None:
    source = (Path(__file__).parents[1] / "kernels.py").read_text().splitlines()
    (reduce, *_) = [
        op
        for loop in module("softmax").kernel.body.entry.ops
        for region in loop.regions
        for op in region.entry.ops
        if op.name == "tt.reduce"
    ]
    assert "tl.max(x, axis=0)" in source[reduce.line.line - 1]


@pytest.mark.parametrize(
    ("location", "line"),
    [
        ('"k.py":7:3', 7),
        ('"name"("k.py":7:3)', 7),
        ('callsite("lib.py":1:1 at "k.py":7:3)', 1),
        ('callsite("triton/language/standard.py":1:1 at "k.py":7:3)', 7),
        ('callsite("triton/language/core.py":1:1 at callsite("x"("k.py":7:3) at "k.py":9:1))', 7),
        ('fused[unknown, "k.py":7:3]', 7),
        ("unknown", 0),
    ],
)
def test_every_form_of_location_resolves(location: str, line: int) -> None:
    (op, _) = ops_of(f"    %0 = tt.get_program_id x : i32 loc({location})")
    assert op.line.line == line


def test_aliases_of_locations_resolve_whatever_their_order() -> None:
    module = parse_module(
        '#loc = loc("k.py":1:1)\nmodule {\n  tt.func @k() {\n    tt.return loc(#loc2)\n  }\n}\n'
        '#loc2 = loc("x"(#loc3))\n#loc3 = loc("k.py":5:2)\n'
    )
    assert module.kernel.body.entry.ops[0].line.line == 5


@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("%0 = arith.constant true", ["i1"]),
        ("%0 = arith.constant dense<0xFF800000> : tensor<4xf32>", ["tensor<4xf32>"]),
        ("%0 = arith.constant 0xFF800000 : f32", ["f32"]),
        ("%0 = tt.load %x : !tt.ptr<f32>", ["f32"]),
        ("%0 = tt.load %x cacheModifier = ca evictionPolicy = evict_last : !tt.ptr<f32>", ["f32"]),
        ("%0 = tt.load %x {isVolatile = true} : !tt.ptr<f32>", ["f32"]),
        ("%0 = tt.splat %x : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>", ["tensor<4x!tt.ptr<f32>>"]),
        (
            "%0 = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>\n"
            "    %1 = arith.cmpi slt, %0, %0 : tensor<4xi32>\n"
            "    %2 = arith.addi %0, %0 overflow<nsw, nuw> : tensor<4xi32>\n"
            "    %3 = arith.select %1, %0, %2 : tensor<4xi1>, tensor<4xi32>\n"
            "    %4 = arith.extsi %3 : tensor<4xi32> to tensor<4xi64>",
            ["tensor<4xi32>", "tensor<4xi1>", "tensor<4xi32>", "tensor<4xi32>", "tensor<4xi64>"],
        ),
    ],
)
def test_result_types_are_those_that_mlir_gives(body: str, types: list[str]) -> None:
    *ops, _ = ops_of("    " + body)
    assert [str(result.type) for op in ops for result in op.results] == types


def test_several_results_are_told_apart() -> None:
    ops = ops_of(
        "    %c = arith.constant 1 : i32\n"
        "    %r:2 = scf.for %i = %c to %c step %c iter_args(%a = %c, %b = %c) -> (i32, i32)"
        " : i32 {\n"
        "      scf.yield %b, %a : i32, i32\n"
        "    }\n"
        "    %s = arith.subi %r#1, %r#0 : i32"
    )
    loop, subtract = ops[1], ops[2]
    assert subtract.operands == (loop.results[1], loop.results[0])
    assert loop.regions[0].entry.ops[0].operands == loop.regions[0].entry.args[:0:-1]


def test_blocks_and_branches_of_an_early_return() -> None:
    blocks = module("early").kernel.body.blocks
    assert [block.label for block in blocks] == ["", "^bb1", "^bb2", "^bb3"]
    assert [successor.label for successor in blocks[2].ops[-1].successors] == ["^bb3", "^bb3"]
    assert len(blocks[3].args) == 1


def test_text_without_locations_parses() -> None:
    bare = re.sub(r" loc\(#loc\d*\)|^#loc.*\n", "", text("matmul"), flags=re.MULTILINE)
    assert "loc(#" not in bare
    ops = parse_module(bare).kernel.body.entry.ops
    assert len(ops) == len(module("matmul").kernel.body.entry.ops)


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ("    %0 = arith.addi %nowhere, %nowhere : i32", 3),
        ("    %0 = tt.load %x : !tt.ptr<f32>\n    %1 = arith.addf %0, %2 : f32", 4),
        ("    %0 = ???", 3),
        ("    scf.for %i = %x {", 3),
    ],
)
def test_an_error_names_the_line_of_the_text(broken: str, line: int) -> None:
    with pytest.raises(KernelParseError, match=rf"line {line}: "):
        kernel(broken)


@pytest.mark.parametrize("junk", ["", "module {", "hello", "module {}", "\0", "{" * 5000])
def test_what_is_no_ttir_is_refused(junk: str) -> None:
    with pytest.raises(KernelParseError):
        parse_module(junk)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A real text with a few places cut, doubled, swapped or overwritten."""
    result = text(draw(st.sampled_from(["softmax", "early", "wh", "desc", "gather", "misc"])))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(result)))
        end = min(start + draw(st.integers(0, 60)), len(result))
        insert = draw(
            st.sampled_from(
                ["", "(", ")", "<", ">", "{", "}", '"', "%", "%0", "0x", "loc(", ":", "\n"]
            )
            | st.text(max_size=3)
            | st.just(result[start:end] * 2)
        )
        result = result[:start] + insert + result[end:]
    return result


@pytest.mark.slow
@examples(150, deadline=5000)
@given(mutated())
def test_damaged_text_parses_or_is_refused_with_our_error(damaged: str) -> None:
    with contextlib.suppress(KernbenchError):
        assert parse_module(damaged).functions
