"""The time of whole launches, against closed forms and bounds."""

import heapq
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernbench.commands import (
    PE_ENGINES,
    UNKNOWN_LINE,
    DmaRead,
    DmaWrite,
    Engine,
    Gemm,
    KernelTrace,
    Predicate,
    Splat,
    Tile,
)
from kernbench.dtypes import float8_e5m2, float16, float32
from kernbench.errors import MachineError, UsageError
from kernbench.hardware import load_machine, parse_machine
from kernbench.kernel_ir import evaluate, parse_module
from kernbench.kernel_time.conditions import Conditions
from kernbench.kernel_time.launch.schedule import kernel_duration_ps, schedule_kernel
from kernbench.op_log import ROW_COLUMNS, Template
from kernbench.policy import DPPolicy
from tests.kernel_time.kernel_traces import access, gemm_trace, machine_with, only_gemm, trace_of
from tests.tiers import examples

AHBM = load_machine("ahbm", 1)
A100 = load_machine("a100-sxm-80g", 1)
SHAPES = st.tuples(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400))
BLOCKS = st.sampled_from([(16, 16, 16), (32, 64, 32), (64, 64, 64), (128, 32, 64)])


def time_of(trace: KernelTrace, machine: Any = AHBM, **conditions: Any) -> int:
    return schedule_kernel(trace, machine, 0, Conditions(**conditions)).duration_ps


# A PE of round numbers: 1 GHz, 100 GB/s of HBM behind a port of 200 GB/s, no cache, one cube.
PLAIN: dict[str, Any] = {
    "clock_ghz": 1,
    "num_cubes": 1,
    "pes_per_cube": 1,
    "front_end_us": 1,
    "cache": None,
    "die_to_die": None,
    "cube__hbm_bandwidth_gbps": 100,
    "cube__hbm_latency_ns": 50,
    "pe__dma_port_gbps": 200,
    "pe__dma_issue_cycles": 2,
}


@pytest.mark.adr("0007-D1")
def test_load_gemm_store_by_hand() -> None:
    trace = gemm_trace(16, 16, 32, block=(16, 16, 32), num_stages=1)
    template = schedule_kernel(trace, machine_with(**PLAIN), 0)
    load = 2_000 + 1024 * 10  # two cycles to issue, 1024 bytes at 100 GB/s; 50 ns later in TCM
    gemm = (1 + 16) * 1000  # one native tile, and filling and draining
    math = (8 + 256 // 128) * 1000
    store = 2_000 + 512 * 10
    assert template.duration_ps == 1_000_000 + 2 * load + 50_000 + gemm + math + store + 50_000
    assert template.engine_busy_ps == dict.fromkeys(PE_ENGINES, 0) | {
        Engine.DMA_IN: 2 * load,
        Engine.GEMM: gemm,
        Engine.MATH: math,
        Engine.DMA_OUT: store,
    }
    assert template.flops == 2 * 16 * 16 * 32
    assert template.hbm_bytes == 1024 + 1024 + 512
    rows = template.make_rows()
    kinds = ["dma_read", "dma_read", "gemm", "math", "dma_write"]
    assert rows["kind"].tolist() == kinds
    starts = [0, load, 2 * load + 50_000]
    starts += [starts[-1] + gemm, starts[-1] + gemm + math]
    assert rows["start_ps"].tolist() == [1_000_000 + start for start in starts]
    assert rows["end_ps"][-1] == template.duration_ps
    assert rows["bytes"].tolist() == [1024, 1024, 0, 0, 512]


@examples(40)
@given(shape=SHAPES, block=BLOCKS, stages=st.integers(1, 4), machine=st.sampled_from([AHBM, A100]))
def test_no_launch_beats_the_roofline(
    shape: tuple[int, int, int], block: tuple[int, int, int], stages: int, machine: Any
) -> None:
    template = schedule_kernel(gemm_trace(*shape, block, stages), machine, 0)
    sip = machine.sip
    assert template.duration_ps >= template.flops * 10**12 / sip.peak_flops_per_s("float16")
    assert template.duration_ps >= sip.hbm_stream_ps(template.hbm_bytes)
    assert template.duration_ps >= template.bound_ps > 0
    # Each operand is touched at least once, in whole bursts or less.
    m, n, k = shape
    assert template.hbm_bytes >= 2 * (m * k + k * n + m * n)


CACHE: dict[str, Any] = {
    "capacity_mib": 1,
    "bandwidth_gbps": 400,
    "latency_ns": 30,
    "retained_share": 1,
}
FASTER: dict[str, Callable[[float], dict[str, Any]]] = {
    "HBM": lambda times: {"cube__hbm_bandwidth_gbps": 100 * times},
    "port": lambda times: {"pe__dma_port_gbps": AHBM.sip.pe.dma_port_gbps * times},
    "cache": lambda times: {"cache": CACHE | {"bandwidth_gbps": 400 * times}},
}


@pytest.mark.parametrize("what", FASTER)
@examples(25)
@given(
    shape=SHAPES,
    block=BLOCKS,
    percent=st.integers(1, 60),
    quarters=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
@example(shape=(4, 37, 287), block=(64, 64, 64), percent=34, quarters=(0, 0))
def test_more_bandwidth_is_never_slower(
    what: str,
    shape: tuple[int, int, int],
    block: tuple[int, int, int],
    percent: int,
    quarters: tuple[int, int],
) -> None:
    trace = gemm_trace(*shape, block)
    cached = tuple((param, Fraction(quarter, 4)) for param, quarter in enumerate(quarters))
    slow: dict[str, Any] = {
        "cube__hbm_bandwidth_gbps": 100,
        "cache": CACHE if any(quarters) or what == "cache" else None,
    }
    fast = slow | FASTER[what](1 + percent / 100)
    times = [time_of(trace, machine_with(**item), cached=cached) for item in (slow, fast)]
    assert times[1] <= times[0]


@examples(30)
@given(shape=SHAPES, block=BLOCKS)
def test_one_stage_is_never_faster_than_two(
    shape: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    one, two = (time_of(gemm_trace(*shape, block, stages)) for stages in (1, 2))
    assert one >= two


@examples(20)
@given(shape=SHAPES)
def test_ragged_shapes_keep_the_gemm_engine_as_busy_as_padded_ones(
    shape: tuple[int, int, int],
) -> None:
    m, n, k = (-(-size // 64) * 64 for size in shape)
    ragged, whole = (schedule_kernel(gemm_trace(*item), AHBM, 0) for item in (shape, (m, n, k)))
    assert ragged.engine_busy_ps[Engine.GEMM] == whole.engine_busy_ps[Engine.GEMM]


@given(m=st.integers(1, 70), n=st.integers(1, 70), k=st.integers(1, 70))
def test_a_dot_of_part_of_a_native_tile_costs_the_whole_tile(m: int, n: int, k: int) -> None:
    def dot(m: int, n: int, k: int) -> int:
        return time_of(trace_of(([0], only_gemm(m, n, k))))

    assert dot(m, n, k) == dot(-(-m // 16) * 16, -(-n // 16) * 16, -(-k // 32) * 32)


@pytest.mark.slow
@pytest.mark.adr("0003-D3")
@pytest.mark.adr("0007-D4")
@settings(deadline=None)
@given(programs=st.integers(1, 200), cubes=st.integers(1, 4), pes=st.integers(1, 8))
def test_equal_programs_run_in_waves(programs: int, cubes: int, pes: int) -> None:
    machine = machine_with(num_cubes=cubes, pes_per_cube=pes, front_end_us=0)
    one = time_of(trace_of(([0], only_gemm(64, 64, 64))), machine)
    all_of_them = trace_of((list(range(programs)), only_gemm(64, 64, 64)))
    assert time_of(all_of_them, machine) == one * -(-programs // (cubes * pes))


@pytest.mark.slow
@settings(deadline=None)
@given(programs=st.integers(1, 200), pes=st.integers(1, 16))
def test_more_pes_are_never_slower_for_equal_programs(programs: int, pes: int) -> None:
    trace = trace_of((list(range(programs)), only_gemm(64, 64, 64)))
    more = time_of(trace, machine_with(pes_per_cube=pes + 1))
    assert more <= time_of(trace, machine_with(pes_per_cube=pes))


@pytest.mark.adr("0007-D4")
@examples(50)
@given(kinds=st.lists(st.sampled_from([16, 48, 160]), min_size=1, max_size=40))
def test_unequal_programs_go_to_the_pe_that_is_free_first(kinds: list[int]) -> None:
    machine = machine_with(num_cubes=1, pes_per_cube=3, front_end_us=0)
    groups = [
        ([index for index, kind in enumerate(kinds) if kind == size], only_gemm(size, 16, 32))
        for size in sorted(set(kinds))
    ]
    alone = {s: time_of(trace_of(([0], only_gemm(s, 16, 32))), machine) for s in set(kinds)}
    free = [0, 0, 0]
    for kind in kinds:
        heapq.heapreplace(free, free[0] + alone[kind])
    template = schedule_kernel(trace_of(*groups), machine, 0)
    assert template.duration_ps == max(free)
    check_rows(template)


def copy_trace(programs: int, elements: int) -> KernelTrace:
    """Every program copies ``elements`` fp16 numbers of its own."""
    offset = {"P": np.arange(programs) * elements * 2, "R": np.arange(elements) * 2}
    tile = Tile(0, (elements,), float16)
    true = Predicate((elements,))
    read = DmaRead(tile, access(0, (elements,), float16, **offset), true, None, UNKNOWN_LINE)
    write = DmaWrite(access(1, (elements,), float16, **offset), tile, true, UNKNOWN_LINE)
    return trace_of((list(range(programs)), (read, write)))


def test_a_copy_reaches_the_bandwidth_of_hbm() -> None:
    template = schedule_kernel(copy_trace(32 * 32, 1 << 16), AHBM, 0)
    assert template.hbm_bytes == 2 * 2 * 1024 * (1 << 16)
    bound = AHBM.sip.hbm_stream_ps(template.hbm_bytes)
    assert bound <= template.duration_ps <= bound * 1.05


@pytest.mark.adr("0007-D5")
def test_a_lone_program_has_hbm_to_itself() -> None:
    """The tail of a launch shares bandwidth among its own programs only."""
    machine = machine_with(
        pe__dma_port_gbps=100_000,
        front_end_us=0,
        pe__resident_programs=1,
        cube__hbm_latency_ns=0,
    )
    full, tail, both = (time_of(copy_trace(count, 1 << 16), machine) for count in (32, 1, 33))
    assert both == full + tail
    assert tail < full / 10


@pytest.mark.adr("0007-D7")
def test_the_next_program_loads_while_one_computes() -> None:
    trace = copy_trace(32 * 64, 1024)
    alone = time_of(trace, machine_with(pe__resident_programs=1))
    four = time_of(trace, machine_with(pe__resident_programs=4))
    assert four < alone / 2
    full = replace(trace, tcm_bytes=AHBM.sip.tcm_bytes)
    assert time_of(full) == alone


@pytest.mark.slow
@given(programs=st.integers(1, 70), elements=st.integers(1, 4096), resident=st.integers(1, 5))
@examples(40)
def test_more_resident_programs_are_never_slower(
    programs: int, elements: int, resident: int
) -> None:
    trace = copy_trace(programs, elements)
    fewer, more = (
        time_of(trace, machine_with(pe__resident_programs=count))
        for count in (resident, resident + 1)
    )
    assert more <= fewer


@pytest.mark.adr("0007-D6")
def test_a_tile_that_the_wave_shares_comes_from_hbm_once() -> None:
    # 8 x 8 tiles of 64 x 64; a wave is 4 rows of tiles: all 8 columns and 4 rows of operands.
    small = {"cache__capacity_mib": 0.001}
    template = schedule_kernel(gemm_trace(512, 512, 512), machine_with(**small), 0)
    operand = 64 * 512 * 2
    assert template.hbm_bytes == 2 * (4 + 8) * operand + 512 * 512 * 2
    # Without a cache each program loads its own.
    alone = schedule_kernel(gemm_trace(512, 512, 512), machine_with(cache=None), 0)
    assert alone.hbm_bytes == 64 * 2 * operand + 512 * 512 * 2
    # With room for both operands they are loaded once.
    roomy = schedule_kernel(gemm_trace(512, 512, 512), AHBM, 0)
    assert roomy.hbm_bytes == 3 * 512 * 512 * 2


@pytest.mark.adr("0007-D6")
def test_program_order_matters_where_there_is_a_cache() -> None:
    machine = machine_with(cache__capacity_mib=0.001, cube__hbm_bandwidth_gbps=20)
    wide = gemm_trace(256, 4096, 512, num_stages=4)
    tall_order = gemm_trace(256, 4096, 512, num_stages=4, column_major=True)
    rows, columns = (schedule_kernel(item, machine, 0) for item in (wide, tall_order))
    # Row-major: 2 waves of 64 tiles' halves see 1 row and 32 columns. Column-major: 4 rows, 8.
    assert columns.hbm_bytes < rows.hbm_bytes
    assert columns.duration_ps < rows.duration_ps


@pytest.mark.adr("0026-D3")
def test_a_tensor_on_one_cube_has_the_bandwidth_of_one_cube() -> None:
    sip = machine_with(die_to_die__bandwidth_gbps=100_000, front_end_us=0).sip
    trace = copy_trace(32 * 8, 1 << 16)
    machine = machine_with(die_to_die__bandwidth_gbps=100_000, front_end_us=0)
    on_one = DPPolicy(cube="row_wise", num_cubes=1).resolve(sip)
    everywhere = DPPolicy(cube="row_wise").resolve(sip)
    # Reads take four times as long, writes as before.
    spread = time_of(trace, machine, placements=((0, everywhere), (1, everywhere)))
    narrow = time_of(trace, machine, placements=((0, on_one), (1, everywhere)))
    assert spread == time_of(trace, machine)
    assert 2.3 < narrow / spread < 2.6


@pytest.mark.adr("0026-D3")
def test_only_replicas_are_read_without_crossing_cubes() -> None:
    machine = machine_with(die_to_die__bandwidth_gbps=10)
    sip = machine.sip
    trace = copy_trace(32 * 8, 1 << 12)
    replicated = ((0, DPPolicy().resolve(sip)), (1, DPPolicy(cube="row_wise").resolve(sip)))
    assert time_of(trace, machine, placements=replicated) < time_of(trace, machine)
    written = ((0, DPPolicy(cube="row_wise").resolve(sip)), (1, DPPolicy().resolve(sip)))
    template = schedule_kernel(trace, machine, 0, Conditions(placements=written))
    assert template.hbm_bytes == 5 * 32 * 8 * (1 << 13)  # read once, written to four copies


def test_programs_run_on_the_pes_that_policies_ask_for() -> None:
    trace = trace_of((list(range(64)), only_gemm(64, 64, 64)))
    half = DPPolicy(num_cubes=2).resolve(AHBM.sip)
    machine = machine_with(front_end_us=0)
    assert time_of(trace, machine, placements=((0, half),)) == 2 * time_of(trace, machine)


def check_rows(template: Template) -> None:
    rows = template.make_rows()
    assert set(rows) <= set(ROW_COLUMNS)
    assert len({len(column) for column in rows.values()}) == 1
    start, end, busy = rows["start_ps"], rows["end_ps"], rows["busy_ps"]
    assert (start >= 0).all()
    assert (start <= end).all()
    assert (end <= template.duration_ps).all()
    assert (busy <= end - start).all()
    assert rows["flops"].sum() == template.flops
    assert (np.diff(start) >= 0).all()


@examples(30)
@given(shape=SHAPES, block=BLOCKS, stages=st.integers(1, 4), machine=st.sampled_from([AHBM, A100]))
def test_rows_lie_inside_the_launch_and_add_up(
    shape: tuple[int, int, int], block: tuple[int, int, int], stages: int, machine: Any
) -> None:
    trace = gemm_trace(*shape, block, stages)
    template = schedule_kernel(trace, machine, 0)
    check_rows(template)
    rows = template.make_rows()
    gemms = rows["kind"] == "gemm"
    assert rows["program_count"][gemms].sum() == trace.num_programs
    assert rows["count"][gemms].sum() == trace.num_programs * -(-shape[2] // block[2])
    stores = rows["kind"] == "dma_write"
    assert rows["bytes"][stores].sum() == 2 * shape[0] * shape[1]


def test_the_same_launch_has_the_same_schedule() -> None:
    one, two = (schedule_kernel(gemm_trace(500, 300, 200), AHBM, 0) for _ in range(2))
    assert one.duration_ps == two.duration_ps
    first, second = one.make_rows(), two.make_rows()
    assert all((first[name] == second[name]).all() for name in first)


@examples(10)
@given(shape=SHAPES, machine=st.sampled_from([AHBM, A100]), queued=st.booleans())
def test_a_duration_alone_is_that_of_the_schedule(
    shape: tuple[int, int, int], machine: Any, queued: bool
) -> None:
    trace = gemm_trace(*shape)
    conditions = Conditions(queued=queued)
    whole = schedule_kernel(trace, machine, 0, conditions)
    assert kernel_duration_ps(trace, machine, 0, conditions) == whole.duration_ps


def test_a_slow_sip_is_slow() -> None:
    data = load_machine("ahbm", 2).spec.model_dump(mode="json")
    data["sip_overrides"] = {1: {"clock_ghz": 0.75}}
    machine = parse_machine(yaml.safe_dump(data), "test.yaml", 2)
    trace = trace_of(([0], only_gemm(64, 64, 64)))
    fast, slow = (schedule_kernel(trace, machine, sip).duration_ps for sip in (0, 1))
    front_end = machine.sip.front_end_ps
    assert slow - front_end == 2 * (fast - front_end)


def test_a_launch_without_commands_takes_the_front_end_only() -> None:
    template = schedule_kernel(trace_of(([0, 1], ())), AHBM, 0)
    assert template.duration_ps == AHBM.sip.front_end_ps
    assert len(template.make_rows()["start_ps"]) == 0


def test_a_sip_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="SIP 1 was asked"):
        schedule_kernel(trace_of(([0], ())), AHBM, 1)


def test_a_dot_of_a_dtype_without_a_rate_is_refused() -> None:
    trace = trace_of(([0], only_gemm(16, 16, 16, float8_e5m2)))
    with pytest.raises(MachineError, match="no rate for float8_e5m2"):
        schedule_kernel(trace, A100, 0)


def test_precisions_of_float32_cost_their_passes() -> None:
    def dot(precision: str) -> int:
        a, b = Splat(0.0, (512, 512), float32), Splat(0.0, (512, 512), float32)
        command = Gemm(Tile(0, (512, 512), float32), a, b, None, precision, UNKNOWN_LINE)
        return time_of(trace_of(([0], (command,))), machine_with(front_end_us=0))

    assert dot("tf32") < dot("tf32x3") < 3 * dot("tf32")
    assert 7 * dot("tf32") < dot("ieee") <= 8 * dot("tf32")


def test_a_compiled_matmul_is_scheduled() -> None:
    module = parse_module((Path(__file__).parents[1] / "data/matmul.ttir").read_text())
    ints = {3: 1000, 4: 1000, 5: 1000, 6: 1000, 7: 1000, 8: 1000}
    trace = evaluate(module, (256, 1, 1), ints, num_warps=4, num_stages=3)
    template = schedule_kernel(trace, AHBM, 0)
    check_rows(template)
    assert template.flops == 2 * 64 * 64 * 64 * 16 * 256
    by_hand = schedule_kernel(gemm_trace(1000, 1000, 1000), AHBM, 0)
    assert template.engine_busy_ps[Engine.GEMM] == by_hand.engine_busy_ps[Engine.GEMM]
    # The compiled one wraps rows around instead of masking them, and goes in groups of 8 rows.
    assert abs(template.duration_ps / by_hand.duration_ps - 1) < 0.2
    assert set(template.make_rows()["file"]) == {"matmul.py"}
