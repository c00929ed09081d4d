"""What a launch is bound by, from the busy times that its schedule gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import UNKNOWN_LINE, KernelTrace, Math, MathClass, Splat, Tile
from kernbench.dtypes import float32
from kernbench.hardware import Machine
from kernbench.kernel_time import schedule_kernel
from kernbench.op_log import Instance, Limit, OpLog
from kernbench.report import build_report
from tests.kernel_time.kernel_traces import gemm_trace, machine_with, only_gemm, trace_of
from tests.kernel_time.launch.test_schedule import copy_trace
from tests.tiers import examples


def bound_by(trace: KernelTrace, machine: Machine) -> str:
    template = schedule_kernel(trace, machine, 0)
    log = OpLog()
    log.append(Instance(template, 0, (0,), (0,), (0,), (template.duration_ps,), "sip0"))
    return build_report(log, machine, ranks=1, wall_s=0)["kernels"][0]["bound_by"]


def only_math(elements: int) -> tuple[Math, ...]:
    operand = Splat(1.0, (elements,), float32)
    tile = Tile(0, (elements,), float32)
    return (Math(tile, "math.exp", (operand,), MathClass.TRANSCENDENTAL, UNKNOWN_LINE),)


@pytest.mark.adr("0010-D7")
def test_a_kernel_is_bound_by_the_part_of_the_machine_that_is_made_slow() -> None:
    every_pe = list(range(32))
    dots = trace_of((every_pe, only_gemm(2048, 2048, 2048)))
    assert bound_by(dots, machine_with()) == "GEMM"
    assert bound_by(trace_of((every_pe, only_math(1 << 20))), machine_with()) == "math"
    stream = copy_trace(256, 1 << 16)
    assert bound_by(stream, machine_with()) == "HBM"
    assert bound_by(stream, machine_with(pe__dma_port_gbps=1)) == "port"
    assert bound_by(stream, machine_with(cache__bandwidth_gbps=20)) == "cache"
    assert bound_by(stream, machine_with(die_to_die__bandwidth_gbps=5)) == "cubes"
    tiny = trace_of(([0], only_gemm(16, 16, 16)))
    assert bound_by(tiny, machine_with(front_end_us=50)) == "launch"
    assert bound_by(copy_trace(1, 64), machine_with(cube__hbm_latency_ns=9000)) == "latency"


@pytest.mark.adr("0010-D7")
@examples(30)
@given(m=st.integers(1, 500), n=st.integers(1, 500), k=st.integers(1, 500))
def test_the_longest_limit_the_latency_and_the_front_end_make_up_the_time(
    m: int, n: int, k: int
) -> None:
    template = schedule_kernel(gemm_trace(m, n, k), machine_with(), 0)
    limits = dict(template.limits_ps)
    launch, latency = limits.pop(Limit.LAUNCH), limits.pop(Limit.LATENCY)
    assert launch + max(limits.values()) + latency == template.duration_ps
    assert min(limits.values()) >= 0
