"""Bursts and shared tiles, against every address of every program written out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import PROGRAM, UNKNOWN_LINE, Access, DmaRead, Predicate, Tile, axis_dim
from kernbench.dtypes import float16
from kernbench.kernel_time.costs import bursts
from kernbench.kernel_time.costs.bursts import TouchedBytes, touched
from kernbench.kernel_time.costs.fingerprints import pattern_fingerprints, program_fingerprints
from kernbench.kernel_time.program.timed_plan import CommandSite, build_program_plan
from tests.kernel_time.kernel_traces import COLUMN, ROW, access
from tests.tiers import examples

BURST, LINE = 64, 128


def site_of(command: Any, *before: Any) -> CommandSite:
    return build_program_plan((*before, command), 8).sites[-1]


def load(source: Access, mask: Predicate) -> DmaRead:
    return DmaRead(Tile(0, source.shape, float16), source, mask, None, UNKNOWN_LINE)


def addresses(source: Access, mask: Predicate, program: int) -> set[int]:
    dims = tuple(axis_dim(axis) for axis in range(len(source.shape)))
    offset = np.broadcast_to(source.offset.at(PROGRAM, program).dense(dims), source.shape)
    held = np.broadcast_to(mask.at(PROGRAM, program).dense(dims), source.shape)
    return set(offset[held].tolist())


@st.composite
def loads(draw: st.DrawFn) -> DmaRead:
    rows, columns, programs = (draw(st.integers(1, n)) for n in (9, 40, 5))
    strides = st.sampled_from([0, 2, 4, 6, 64, 80, 128, 1000, 2 * columns, -2, -128])
    terms: dict[str, Any] = {
        "P": draw(st.integers(0, 4)) * BURST * np.arange(programs),
        "R": draw(strides) * np.arange(rows),
        "C": draw(strides) * np.arange(columns),
    }
    if draw(st.booleans()):  # modulo wrap-around, as in the tutorial's matmul
        wrap = draw(st.integers(1, rows + 2))
        terms["PR"] = 256 * ((np.arange(programs)[:, None] + np.arange(rows)) % wrap)
    held = {
        (PROGRAM, ROW): np.arange(programs)[:, None] * 2 + np.arange(rows)
        < draw(st.integers(0, 20)),
        (COLUMN,): np.arange(columns) < draw(st.integers(0, 45)),
    }
    mask = Predicate((rows, columns), {d: h for d, h in held.items() if not h.all()})
    return load(access(0, (rows, columns), float16, **terms), mask)


@pytest.mark.adr("0007-D5")
@examples(150)
@given(command=loads())
def test_a_tile_moves_the_bursts_that_its_active_elements_lie_in(command: DmaRead) -> None:
    assert isinstance(command.mask, Predicate)
    count = max(
        (a.shape[0] for d, a in command.source.offset.terms.items() if d[0] == 0), default=1
    )
    for program in range(count):
        result = addresses(command.source, command.mask, program)
        first = min(result, default=0)
        bursts = {(item - first + byte) // BURST for item in result for byte in (0, 1)}
        dims, (moved,) = touched(site_of(command), program, BURST)
        assert dims == ()
        assert moved.burst_bytes == BURST * len(bursts)
        # Windows that overlap are moved to TCM once each; broadcasts only once.
        elements = int(np.prod(command.source.shape))
        assert 2 * len(result) <= moved.useful_bytes <= 2 * elements


@examples(100)
@given(command=loads())
def test_programs_are_told_apart_exactly_where_their_addresses_differ(command: DmaRead) -> None:
    everywhere = Predicate(command.source.shape)
    count = 5
    padded = [addresses(command.source, everywhere, program) for program in range(count)]
    marks = program_fingerprints(site_of(command), count) if _programs(command) == count else None
    if marks is None:
        return
    firsts = [source_order(command.source, program) for program in range(count)]
    for one in range(count):
        for two in range(count):
            assert (marks[one] == marks[two]) == (firsts[one] == firsts[two])
            if marks[one] == marks[two]:
                assert padded[one] == padded[two]


def _programs(command: DmaRead) -> int:
    lengths = [a.shape[0] for d, a in command.source.offset.terms.items() if d[0] == PROGRAM]
    return max(lengths, default=0)


def source_order(source: Access, program: int) -> tuple[int, ...]:
    dense = source.offset.at(PROGRAM, program).dense((ROW, COLUMN))
    return tuple(np.broadcast_to(dense, source.shape).reshape(-1).tolist())


@examples(100)
@given(command=loads())
def test_programs_of_one_pattern_move_the_same(command: DmaRead) -> None:
    count = _programs(command) or 1
    marks = pattern_fingerprints(site_of(command), count)
    moved = [touched(site_of(command), program, BURST) for program in range(count)]
    for one in range(count):
        assert moved[one] == moved[int(np.argmax(marks == marks[one]))]


def test_a_masked_off_tile_moves_nothing() -> None:
    source = access(0, (4, 8), float16, C=2 * np.arange(8), R=16 * np.arange(4))
    never = Predicate((4, 8), {(): np.array(False)})
    assert touched(site_of(load(source, never)), 0, BURST) == ((), (TouchedBytes(0, 0),))


def test_tiles_of_one_form_are_counted_once() -> None:
    def counted(stride: int, held: int, program: int, param: int = 0) -> object:
        rows = {"P": 4096 * np.arange(3), "R": stride * np.arange(4), "C": 2 * np.arange(8)}
        mask = Predicate((4, 8), {(COLUMN,): np.arange(8) < held})
        return touched(site_of(load(access(param, (4, 8), float16, **rows), mask)), program, BURST)[
            1
        ]

    first = counted(64, 7, 0)
    assert counted(64, 7, 2, param=1) is first
    assert counted(64, 6, 0) != first
    assert counted(16, 7, 0) != first


def test_a_broadcast_row_is_moved_once() -> None:
    source = access(0, (16, 32), float16, C=2 * np.arange(32))
    assert touched(site_of(load(source, Predicate((16, 32)))), 0, BURST) == (
        (),
        (TouchedBytes(64, 64, 64, 2 * LINE),),
    )


def test_strided_elements_move_a_burst_each() -> None:
    source = access(0, (1, 32), float16, C=256 * np.arange(32))
    moved = touched(site_of(load(source, Predicate((1, 32)))), 0, BURST)
    assert moved == ((), (TouchedBytes(64, 32 * 64, 2, 32 * LINE),))


def lines(rows: int, columns: int, row: int, column: int, held: int | None = None) -> int:
    """Return how many lines the accesses of a tile touch, by the bytes from one to the next."""
    source = access(
        0, (rows, columns), float16, R=row * np.arange(rows), C=column * np.arange(columns)
    )
    mask = Predicate((rows, columns), {} if held is None else {(ROW,): np.arange(rows) < held})
    ((moved,),) = touched(site_of(load(source, mask)), 0, BURST)[1:]
    return moved.line_bytes // LINE


@pytest.mark.parametrize(("row", "column"), [(512, 2), (2, 512)])
def test_lanes_along_contiguous_elements_touch_each_line_once(row: int, column: int) -> None:
    rows, columns = (32, 256) if column == 2 else (256, 32)
    assert lines(rows, columns, row, column) == 32 * 256 * 2 // LINE


def test_rows_shorter_than_a_line_take_one_each() -> None:
    assert lines(64, 32, 8192, 2) == 64


def test_lanes_along_rows_touch_a_line_each_where_no_elements_are_contiguous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every second element of a row, as packed pairs are unpacked: 32 rows of 64.
    assert lines(32, 64, 8192, 4) == 32 * 64 // 32
    monkeypatch.setattr(bursts, "FIRST_AXIS_OF_EQUALS", True)
    bursts._known.cache_clear()
    assert lines(32, 64, 8192, 4) == 32 * 64
    bursts._known.cache_clear()


def test_a_warp_whose_lanes_are_off_touches_nothing() -> None:
    assert lines(64, 256, 512, 2, held=8) == 8 * 256 * 2 // LINE


def test_columns_that_begin_anew_are_as_contiguous_as_their_longest_run() -> None:
    def wrapped(at: int) -> int:
        columns = 2 * (np.arange(256) * (np.arange(256) < at))
        source = access(0, (4, 256), float16, R=512 * np.arange(4), C=columns)
        ((moved,),) = touched(site_of(load(source, Predicate((4, 256)))), 0, BURST)[1:]
        return moved.line_bytes // LINE

    assert wrapped(128) <= wrapped(256) == 4 * 4
