"""Edited TTIR: parser, verifier and evaluator work or say what is wrong, and always end."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kernbench.errors import KernbenchError, KernelParseError, UnsupportedOpError
from kernbench.kernel_ir import evaluate, parse_module
from kernbench.kernel_ir.evaluation import evaluator
from tests.kernel_ir import cases
from tests.tiers import examples

TEXTS = [path.read_text() for path in cases.TEXTS if path.parent.name == cases.VERSIONS[-1]]
TOKEN = re.compile(r"%[\w#]+|\d+|[a-z_]+\.[a-z_]+|tensor<[^>]*>|[a-z]\w*|\S")
KINDS = (r"%[\w#]+", r"\d+", r"[a-z_]+\.[a-z_0-9]+", r"tensor<[^>]*>", r"\b[ifb]\d+\b")


@st.composite
def edited(draw: st.DrawFn) -> str:
    """A kernel with one to three edits: a token replaced by another of its kind, a line gone."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from((*KINDS, "line", "operand", "again")))
        if kind in ("line", "again"):
            lines = text.split("\n")
            at = draw(st.integers(0, len(lines) - 1))
            lines[at : at + 1] = [] if kind == "line" else [lines[at], lines[at]]
            text = "\n".join(lines)
            continue
        if kind == "operand":
            matches = list(re.finditer(r", %\w+", text))
            new = ""
        else:
            matches = list(re.finditer(kind, text))
            new = ""
            if matches:
                new = draw(st.sampled_from(matches)).group()
                if kind == r"\d+":
                    new = draw(st.sampled_from([new, "0", "1", "-1", "3", "2147483647"]))
        if matches:
            match = draw(st.sampled_from(matches))
            text = text[: match.start()] + new + text[match.end() :]
    return text


@examples(250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(text=edited(), value=st.sampled_from([0, 1, 3, 17, -1, 64]), x=st.integers(0, 4))
def test_an_edited_kernel_works_or_raises_an_error_of_ours(text: str, value: int, x: int) -> None:
    with suppress(KernbenchError):
        module = parse_module(text)
        ints = {p.index: value for p in module.kernel.params if p.type.is_int or p.type.is_bool}
        trace = evaluate(module, (x, 1, 1), ints, num_warps=4, num_stages=2)
        ids = [program_id for group in trace.groups for program_id in group.program_ids.tolist()]
        assert sorted(ids) == list(range(x))


@examples(200)
@given(text=st.text(alphabet="%{}()<>:=,.#@\"'-+0129abcdftxi \n!", max_size=200))
def test_any_text_is_a_module_or_an_error_of_ours(text: str) -> None:
    with suppress(KernbenchError):
        assert parse_module(text).functions


def test_a_loop_that_runs_too_often_is_refused_with_its_line() -> None:
    text = (
        "%0 = arith.constant 0 : i32\n%1 = arith.constant 1 : i32\n"
        "%n = arith.constant 2147483647 : i32\n"
        'scf.for %i = %0 to %n step %1 : i32 {\n} loc("k.py":7:1)\n'
    )
    with pytest.raises(UnsupportedOpError, match=r"k\.py:7.*2,147,483,647 times"):
        evaluate(cases.kernel(text), (1, 1, 1), {}, num_warps=4, num_stages=2)


def test_a_loop_that_cannot_be_rolled_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_MAX_EVALUATED", 20_000)
    text = (
        "%0 = arith.constant 0 : i32\n%1 = arith.constant 1 : i32\n"
        "%n = arith.constant 4000000 : i32\n"
        "%r = scf.for %i = %0 to %n step %1 iter_args(%a = %1) -> (i32) : i32 {\n"
        "%b = arith.muli %a, %a : i32\n%c = arith.addi %b, %i : i32\n"
        "scf.yield %c : i32\n}\n"
    )
    with pytest.raises(UnsupportedOpError, match="operations to plan"):
        evaluate(cases.kernel(text), (1, 1, 1), {}, num_warps=4, num_stages=2)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("%0 = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<4xi32>", "from 0 to 8"),
        ("tt.store %x : !tt.ptr<f32>", "must have 2 to 3 operands, but has 1"),
        ("%0 = tt.load %x, %x : !tt.ptr<f32>", "masked by !tt.ptr<f32>"),
        ("%0 = arith.addi %x, %x : i32", "takes !tt.ptr<f32> for i32"),
        ("%0 = math.log10 %x : !tt.ptr<f32>", "takes !tt.ptr<f32>"),
        ("%0 = tt.splat %x : !tt.ptr<f32> -> tensor<2097152x!tt.ptr<f32>>", "1,048,576 elements"),
    ],
)
def test_an_operation_that_cannot_be_names_its_line_of_the_text(body: str, problem: str) -> None:
    with pytest.raises(KernelParseError, match=r"line 3 of the TTIR text") as failure:
        cases.kernel(body)
    assert problem in str(failure.value)
