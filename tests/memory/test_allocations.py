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
    made = begun(AllocationLog())
    for each in phases:
        made.is_for(each)
    order = list(Phase)
    assert made.phase is min([*phases, Phase.OTHER], key=order.index)


def test_events_are_numbered_in_order_and_entries_have_what_was_learned_since() -> None:
    log = AllocationLog()
    first, second = begun(log), begun(log, 5)
    assert [each.end for each in log.entries] == [NEVER, NEVER]
    second.is_for(Phase.WEIGHTS)
    second.name, second.module = "weight", "Net"
    assert [each.phase for each in log.entries] == [Phase.OTHER, Phase.WEIGHTS]
    log.ended(second, 7)
    assert (first.end, second.end) == (NEVER, 2)
    third = begun(log, 9)
    log.ended(third, 11)
    log.ended(first, 13)
    found = [(each.begin, each.end, each.begin_ps, each.end_ps) for each in log.entries]
    assert found == [(0, 5, 0, 13), (1, 2, 5, 7), (3, 4, 9, 11)]
    named = [(each.name, each.module, each.phase, each.line) for each in log.entries]
    assert named == [
        ("x", "", Phase.OTHER, 3),
        ("weight", "Net", Phase.WEIGHTS, 3),
        ("x", "", Phase.OTHER, 3),
    ]
    assert log.entries is log.entries
    assert log.of(0, 1) == []
    assert [each.begin for each in log.of(0, 0)] == [0, 1, 3]
