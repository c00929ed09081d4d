"""Phases of memory, and the order in which they count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.memory import NEVER, AllocationLog, LiveAllocation, Phase


def begun(log: AllocationLog, begin_ps: int = 0) -> LiveAllocation:
    return log.began(0, 0, 512, 4, begin_ps, "x", (1,), "float32", "", "here.py", 3)


@given(st.lists(st.sampled_from(Phase)))
def test_the_first_of_all_phases_counts_in_whatever_order_they_are_known(
    phases: list[Phase],
) -> None:
    result = begun(AllocationLog())
    for phase in phases:
        result.is_for(phase)
    order = list(Phase)
    assert result.phase is min([*phases, Phase.OTHER], key=order.index)


def test_events_are_numbered_in_order_and_entries_have_what_was_learned_since() -> None:
    log = AllocationLog()
    first, second = begun(log), begun(log, 5)
    assert [entry.end for entry in log.entries] == [NEVER, NEVER]
    second.is_for(Phase.WEIGHTS)
    second.name, second.module = "weight", "Net"
    assert [entry.phase for entry in log.entries] == [Phase.OTHER, Phase.WEIGHTS]
    log.ended(second, 7)
    assert (first.end, second.end) == (NEVER, 2)
    third = begun(log, 9)
    log.ended(third, 11)
    log.ended(first, 13)
    entries = [(entry.begin, entry.end, entry.begin_ps, entry.end_ps) for entry in log.entries]
    assert entries == [(0, 5, 0, 13), (1, 2, 5, 7), (3, 4, 9, 11)]
    named = [(entry.name, entry.module, entry.phase, entry.line) for entry in log.entries]
    assert named == [
        ("x", "", Phase.OTHER, 3),
        ("weight", "Net", Phase.WEIGHTS, 3),
        ("x", "", Phase.OTHER, 3),
    ]
    assert log.entries is log.entries
    assert log.of(0, 1) == []
    assert [item.begin for item in log.of(0, 0)] == [0, 1, 3]
