"""The lines of PyTorch programs: forward operations have what their gradients take."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

from kernbench.analysis import attribution, program_lines
from kernbench.analysis.attribution import OF_HOST
from kernbench.runtime_api import RuntimeContext
from tests.torch_bridge.running import PROGRAMS, simulated

PROGRAM = "program_lines.py"
STEPS = 2


@cache
def run(machine: str, **options: Any) -> RuntimeContext:
    return simulated(PROGRAM, machine=machine, data=False, **options)


def by_comment(context: RuntimeContext) -> dict[str, Any]:
    text = (PROGRAMS / PROGRAM).read_text().splitlines()
    program_line = program_lines(context.op_log, 1)["lines"]
    assert {item["file"] for item in program_line} <= {str(PROGRAMS / PROGRAM), ""}
    return {
        text[item["line"] - 1].partition("# ")[2]: item for item in program_line if item["line"]
    }


@pytest.mark.adr("0172-D2")
def test_gradients_are_of_the_line_that_they_differentiate() -> None:
    context = run("ahbm:1", record_lines=True)
    steps = {name: value["launches"] / STEPS for name, value in by_comment(context).items()}
    assert steps["two gradients"] == 3  # y @ w, and the gradients of both
    assert steps["a module"] == 2  # its input needs none
    assert steps["squared"] == 1
    assert steps["its own backward"] == 2
    assert steps["computed twice"] == 3  # forward, again, and the gradient
    assert steps["outside of it"] == 1
    assert steps["read"] == 1
    log = context.op_log
    products = Counter(instance.template.name for instance in log.instances)
    assert products["aten.mm"] == 5 * STEPS


@pytest.mark.adr("0172-D3")
@pytest.mark.parametrize("machine", ["ahbm:1", "h100-sxm:1"])
def test_lines_cost_no_simulated_time(machine: str) -> None:
    plain, asked = run(machine), run(machine, record_lines=True)
    assert plain.op_log.to_arrow().equals(asked.op_log.to_arrow())
    assert plain.op_log.host_spans == asked.op_log.host_spans
    whole = program_lines(asked.op_log, 1)["all"]
    assert whole["critical_path_ns"] == asked.op_log.end_ps / 1000
    host_ps = sum(host_span.end_ps - host_span.start_ps for host_span in asked.op_log.host_spans
                  if host_span.kind != "wait")  # fmt: skip
    assert whole["host_ns"] == host_ps / 1000


def test_memory_of_a_backward_pass_is_of_the_forward_line_without_modules_too() -> None:
    context = run("ahbm:1", record_lines=True, record_memory=True)
    size = 64 * 64 * 4
    # The result, the gradient of y and, added to that of the first step, the one of w.
    assert by_comment(context)["two gradients"]["allocated_bytes"] == 3 * STEPS * size


@pytest.mark.adr("0153-D1")
def test_kernels_without_lines_of_their_own_are_of_the_programs() -> None:
    context = run("h100-sxm:1", record_lines=True)
    text = (PROGRAMS / PROGRAM).read_text().splitlines()
    products = [
        item
        for item in attribution(context.op_log, context.machine, 1)
        if item.name == "aten.mm" and item.resource not in OF_HOST.values()
    ]
    places = {text[product.site[1] - 1].partition("# ")[2] for product in products}
    assert places == {"two gradients", "a module"}
    plain = run("h100-sxm:1")
    unknown = attribution(plain.op_log, plain.machine, 1)
    assert {item.site for item in unknown if item.name == "aten.mm"} == {("", 0)}
