"""Equal addresses cost the same, however they are written (docs/model/cache.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import Engine
from kernbench.hardware import load_machine
from kernbench.kernel_ir import evaluate, parse_module
from kernbench.kernel_time import schedule_kernel
from kernbench.op_log import Template
from tests.tiers import examples

ROWS, COLUMNS, PROGRAMS = 16, 64, 512
STRIDE = 128
"""Elements of 2 bytes from one row of the table to the next."""
TILE = f"tensor<{ROWS}x{COLUMNS}x"
LINE, STACK = f"tensor<{COLUMNS}xi32>", f"tensor<{ROWS}xi32>"
MACHINE = load_machine("h100-sxm", 1)


@dataclass
class Text:
    """TTIR in the making; every value is a tile of integers unless its name says otherwise."""

    lines: list[str] = field(default_factory=list)

    def emit(self, op: str, *operands: str, type_: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"    {name} = {op} {', '.join(operands)} : {type_}")
        return name

    def number(self, value: int) -> str:
        return self.emit("arith.constant", f"dense<{value}>", type_=f"{TILE}i32>")

    def of(self, op: str, a: str, b: str | int) -> str:
        b = self.number(b) if isinstance(b, int) else b
        return self.emit(f"arith.{op}", a, b, type_=f"{TILE}i32>")

    def holds(self, predicate: str, a: str, b: int) -> str:
        return self.emit(f"arith.cmpi {predicate},", a, self.number(b), type_=f"{TILE}i32>")

    def where(self, condition: str, a: str, b: int) -> str:
        types = f"{TILE}i1>, {TILE}i32>"
        return self.emit("arith.select", condition, a, self.number(b), type_=types)

    def splat(self, scalar: str) -> str:
        return self.emit("tt.splat", scalar, type_=f"i32 -> {TILE}i32>")


HEAD = f"""
module {{
  tt.func public @k(%x: !tt.ptr<f16>, %index: !tt.ptr<i32>, %expert: !tt.ptr<i32>, %y: !tt.ptr<f16>)
  {{
    %pid = tt.get_program_id x : i32
    %two = arith.constant 2 : i32
    %rows_n = arith.constant {ROWS} : i32
    %tile_n = arith.constant {ROWS * COLUMNS} : i32
    %half = arith.divsi %pid, %two : i32
    %base = arith.muli %half, %rows_n : i32
    %lane = tt.make_range {{end = {ROWS} : i32, start = 0 : i32}} : tensor<{ROWS}xi32>
    %bases = tt.splat %base : i32 -> tensor<{ROWS}xi32>
    %at = arith.addi %bases, %lane : tensor<{ROWS}xi32>
    %ip = tt.splat %index : !tt.ptr<i32> -> tensor<{ROWS}x!tt.ptr<i32>>
    %ips = tt.addptr %ip, %at : tensor<{ROWS}x!tt.ptr<i32>>, tensor<{ROWS}xi32>
    %named = tt.load %ips : tensor<{ROWS}x!tt.ptr<i32>>
    %ep = tt.addptr %expert, %half : !tt.ptr<i32>, i32
    %chosen = tt.load %ep : !tt.ptr<i32>
    %col = tt.make_range {{end = {COLUMNS} : i32, start = 0 : i32}} : tensor<{COLUMNS}xi32>
    %col2 = tt.expand_dims %col {{axis = 0 : i32}} : {LINE} -> tensor<1x{COLUMNS}xi32>
    %cols = tt.broadcast %col2 : tensor<1x{COLUMNS}xi32> -> {TILE}i32>
    %named2 = tt.expand_dims %named {{axis = 1 : i32}} : {STACK} -> tensor<{ROWS}x1xi32>
    %nameds = tt.broadcast %named2 : tensor<{ROWS}x1xi32> -> {TILE}i32>
    %at2 = tt.expand_dims %at {{axis = 1 : i32}} : {STACK} -> tensor<{ROWS}x1xi32>
    %ats = tt.broadcast %at2 : tensor<{ROWS}x1xi32> -> {TILE}i32>
    %ptr = tt.splat %x : !tt.ptr<f16> -> {TILE}!tt.ptr<f16>>
"""
TAIL = f"""
    %out = arith.muli %pid, %tile_n : i32
    %outs = tt.splat %out : i32 -> {TILE}i32>
    %width = arith.constant dense<{COLUMNS}> : {TILE}i32>
    %lane2 = tt.expand_dims %lane {{axis = 1 : i32}} : {STACK} -> tensor<{ROWS}x1xi32>
    %lanes = tt.broadcast %lane2 : tensor<{ROWS}x1xi32> -> {TILE}i32>
    %line = arith.muli %lanes, %width : {TILE}i32>
    %o1 = arith.addi %outs, %line : {TILE}i32>
    %o2 = arith.addi %o1, %cols : {TILE}i32>
    %yp = tt.splat %y : !tt.ptr<f16> -> {TILE}!tt.ptr<f16>>
    %yps = tt.addptr %yp, %o2 : {TILE}!tt.ptr<f16>>, {TILE}i32>
    tt.store %yps, %value : {TILE}!tt.ptr<f16>>
    tt.return
  }}
}}
"""
LARGE = 1 << 28
"""Above all offsets."""
INDICES = 1 << 14
"""Rows of the table: above all indices, and below most numbers that may stand in for one."""


def rewritten(text: Text, value: str, how: str, bound: int = LARGE) -> str:
    """Return the same numbers in another way; values are from 0 on, and below ``bound``."""
    if how == "%":
        return text.of("remsi", value, LARGE)
    if how == "&":
        return text.of("andi", value, LARGE - 1)
    if how == "min":
        return text.of("minsi", value, bound)
    if how == "where":
        above = text.where(text.holds("sge", value, 0), value, 0)
        return text.where(text.holds("slt", above, bound), above, 0)
    if how == "//":
        quotient, rest = text.of("divsi", value, 8), text.of("remsi", value, 8)
        return text.of("addi", text.of("muli", quotient, 8), rest)
    if how == "xor":
        return text.of("xori", text.of("xori", value, 5), 5)
    assert how == ""
    return value


WAYS = st.sampled_from(["", "", "%", "&", "min", "where", "//", "xor"])


@dataclass(frozen=True)
class Way:
    """How an address is written down."""

    of_terms: tuple[str, ...]
    order: tuple[int, ...]
    sums: tuple[int, ...]
    """By term: into which of the sums it goes that are added to the pointer, one by one."""
    of_sums: tuple[str, ...]
    mask: str


PLAIN = Way(("",) * 4, (0, 1, 2, 3), (0, 1, 2, 3), ("",) * 4, "known")


def kernel(rows: str, kind: str, way: Way) -> str:
    """Return a kernel that reads or changes rows which data names, or the program."""
    text = Text()
    names = rewritten(text, "%nameds" if rows == "named" else "%ats", way.of_terms[0], INDICES)
    expert = rewritten(
        text, text.splat("%chosen" if rows == "named" else "%half"), way.of_terms[1], INDICES
    )
    terms = [
        text.of("muli", names, STRIDE),
        text.of("muli", expert, STRIDE * 4096),
        rewritten(text, "%cols", way.of_terms[2]),
        rewritten(text, text.of("muli", text.splat("%two"), 32), way.of_terms[3]),
    ]
    totals: dict[int, str] = {}
    holds_data: set[int] = set()
    for index in way.order:
        where = way.sums[index]
        before = totals.get(where)
        totals[where] = terms[index] if before is None else text.of("addi", before, terms[index])
        if index < 2:
            holds_data.add(where)
    pointer = "%ptr"
    types = f"{TILE}!tt.ptr<f16>>, {TILE}i32>"
    for where, total in totals.items():
        # Products with strides are above any bound that an index has.
        how = "" if where in holds_data else way.of_sums[where]
        pointer = text.emit("tt.addptr", pointer, rewritten(text, total, how), type_=types)
    mask = text.holds("slt", "%cols", COLUMNS - 8)
    if way.mask == "mixed":
        sum_ = text.of("addi", text.of("muli", "%ats", 0), "%cols")
        mask = text.holds("slt", text.of("xori", text.of("xori", sum_, "%ats"), "%ats"), 56)
    elif way.mask == "data" and rows == "named":
        # What the address waits for anyway.
        valid = text.holds("sge", "%nameds", 0)
        mask = text.emit("arith.andi", mask, valid, type_=f"{TILE}i1>")
    constant = f"    %value = arith.constant dense<0.0> : {TILE}f16>"
    types = f"{TILE}!tt.ptr<f16>>, {TILE}f16>, {TILE}i1>"
    access = {
        "load": [f"    %value = tt.load {pointer}, {mask} : {TILE}!tt.ptr<f16>>"],
        "store": [constant, f"    tt.store {pointer}, %value, {mask} : {TILE}!tt.ptr<f16>>"],
        "atomic": [
            constant,
            f"    %old = tt.atomic_rmw fadd, relaxed, gpu, {pointer}, %value, {mask} : "
            f"({types}) -> {TILE}f16>",
        ],
    }[kind]
    return HEAD + "\n".join([*text.lines, *access]) + TAIL


def scheduled(rows: str, kind: str, way: Way) -> Template:
    trace = evaluate(
        parse_module(kernel(rows, kind, way)), (PROGRAMS, 1, 1), {}, num_warps=4, num_stages=1
    )
    return schedule_kernel(trace, MACHINE, 0)


@st.composite
def ways(draw: st.DrawFn) -> Way:
    return Way(
        of_terms=tuple(draw(WAYS) for _ in range(4)),
        order=tuple(draw(st.permutations(range(4)))),
        sums=tuple(draw(st.integers(0, 3)) for _ in range(4)),
        of_sums=tuple(draw(WAYS) for _ in range(4)),
        mask=draw(st.sampled_from(["known", "mixed", "data"])),
    )


KINDS = [(rows, kind) for rows in ("named", "counted") for kind in ("load", "store", "atomic")]
EXPECTED = {kind: scheduled(*kind, PLAIN) for kind in KINDS}


@pytest.mark.adr("0100-D1")
@examples(80)
@given(kind=st.sampled_from(KINDS), way=ways())
def test_equal_addresses_cost_the_same_however_they_are_written(
    kind: tuple[str, str], way: Way
) -> None:
    result, expected = scheduled(*kind, way), EXPECTED[kind]
    assert (result.duration_ps, result.hbm_bytes) == (expected.duration_ps, expected.hbm_bytes)


@pytest.mark.adr("0100-D2")
@pytest.mark.parametrize("rows", ["named", "counted"])
def test_rows_move_the_bursts_they_lie_in_and_once_for_programs_that_share_them(rows: str) -> None:
    burst = MACHINE.sip_at(0).cube.hbm_burst_bytes
    # Two programs read the same rows.
    tables = PROGRAMS // 2 * ROWS * -(-112 // burst) * burst
    results = PROGRAMS * ROWS * COLUMNS * 2
    indices = PROGRAMS // 2 * ROWS * 4 + PROGRAMS * 64
    moved = EXPECTED[rows, "load"].hbm_bytes
    assert tables + results <= moved <= tables + results + indices


@pytest.mark.adr("0100-D3")
@pytest.mark.parametrize(("stored", "is_charged"), [("%value", False), ("%sum", True)])
def test_arithmetic_on_loaded_indices_is_charged_where_its_result_is_data(
    stored: str, is_charged: bool
) -> None:
    text = f"""
module {{
  tt.func public @k(%x: !tt.ptr<i32>, %index: !tt.ptr<i32>, %y: !tt.ptr<i32>) {{
    %lane = tt.make_range {{end = {ROWS} : i32, start = 0 : i32}} : {STACK}
    %ip = tt.splat %index : !tt.ptr<i32> -> tensor<{ROWS}x!tt.ptr<i32>>
    %ips = tt.addptr %ip, %lane : tensor<{ROWS}x!tt.ptr<i32>>, {STACK}
    %named = tt.load %ips : tensor<{ROWS}x!tt.ptr<i32>>
    %sum = arith.addi %named, %lane : {STACK}
    %xp = tt.splat %x : !tt.ptr<i32> -> tensor<{ROWS}x!tt.ptr<i32>>
    %xps = tt.addptr %xp, %sum : tensor<{ROWS}x!tt.ptr<i32>>, {STACK}
    %value = tt.load %xps : tensor<{ROWS}x!tt.ptr<i32>>
    %yp = tt.splat %y : !tt.ptr<i32> -> tensor<{ROWS}x!tt.ptr<i32>>
    %yps = tt.addptr %yp, %lane : tensor<{ROWS}x!tt.ptr<i32>>, {STACK}
    tt.store %yps, {stored} : tensor<{ROWS}x!tt.ptr<i32>>
    tt.return
  }}
}}
"""
    trace = evaluate(parse_module(text), (1, 1, 1), {}, num_warps=4, num_stages=1)
    busy = schedule_kernel(trace, MACHINE, 0).engine_busy_ps
    assert (busy[Engine.MATH] > 0) == is_charged
