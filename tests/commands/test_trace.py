from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from kernbench.commands import (
    UNKNOWN_LINE,
    Gemm,
    KernelTrace,
    Loop,
    ProgramGroup,
    SourceLine,
    Tile,
    walk,
)
from kernbench.dtypes import float16, float32


def gemm(m: int, n: int, k: int, batch: tuple[int, ...] = ()) -> Gemm:
    a, b = Tile(0, (*batch, m, k), float16), Tile(1, (*batch, k, n), float16)
    return Gemm(Tile(2, (*batch, m, n), float32), a, b, None, "ieee", UNKNOWN_LINE)


def loop(*body: object) -> Loop:
    return Loop(0, 3, tuple(body), (), 1, UNKNOWN_LINE)  # type: ignore[arg-type]


def test_flops_count_a_multiply_add_as_two() -> None:
    assert gemm(16, 32, 8).flops == 2 * 16 * 32 * 8
    assert gemm(16, 32, 8, (4,)).flops == 4 * 2 * 16 * 32 * 8


def test_size_of_a_tile_follows_from_shape_and_type() -> None:
    assert Tile(0, (64, 32), float16).size_bytes == 64 * 32 * 2
    assert Tile(0, (), float32).size_bytes == 4


def test_walk_yields_a_loop_before_its_body() -> None:
    inner = gemm(1, 1, 1)
    middle = loop(inner)
    outer = loop(middle)
    assert list(walk((outer,))) == [outer, middle, inner]


@pytest.mark.usefixtures("collects_own")
def test_a_trace_can_key_a_weak_cache() -> None:
    trace = KernelTrace("k", (1, 1, 1), 4, 1, (), 0, 0, UNKNOWN_LINE, ())
    cache = weakref.WeakKeyDictionary({trace: 1})
    del trace
    gc.collect()
    assert not cache


def test_a_source_line_prints_as_an_editor_reads_it() -> None:
    assert str(SourceLine("/home/me/mlp.py", 31)) == "mlp.py:31"
    assert str(UNKNOWN_LINE) == "unknown line"


def test_a_trace_counts_programs_and_lists_commands_of_all_groups() -> None:
    groups = tuple(ProgramGroup(np.array([i]), (gemm(1, 1, 1),)) for i in range(2))
    trace = KernelTrace("k", (2, 3, 4), 4, 1, groups, 3, 0, UNKNOWN_LINE, ())
    assert trace.num_programs == 24
    assert len(list(trace.commands())) == 2


def test_released_groups_are_made_again_for_whoever_asks() -> None:
    result = []

    def again() -> tuple[ProgramGroup, ...]:
        result.append(ProgramGroup(np.arange(2), (gemm(1, 1, 1),)))
        return tuple(result[-1:])

    trace = KernelTrace("k", (2, 1, 1), 4, 1, again(), 3, 0, UNKNOWN_LINE, (), again=again)
    trace.release()
    trace.release()
    assert len(result) == 1
    assert trace.groups == (result[1],)
    assert trace.groups == (result[1],)
    with pytest.raises(AttributeError, match="a trace has no tiles"):
        _ = trace.tiles  # type: ignore[attr-defined]


def test_groups_that_cannot_be_made_again_stay() -> None:
    groups = (ProgramGroup(np.arange(2), (gemm(1, 1, 1),)),)
    trace = KernelTrace("k", (2, 1, 1), 4, 1, groups, 3, 0, UNKNOWN_LINE, ())
    trace.release()
    assert trace.groups == groups
