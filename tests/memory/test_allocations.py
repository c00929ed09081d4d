"""Phases of memory, and the order in which they count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.memory import Allocation, AllocationLog, Phase


def allocation() -> Allocation:
    return Allocation(0, 0, 512, 4, 0, 0, "x", (1,), "float32")


@given(st.lists(st.sampled_from(Phase)))
def test_the_first_of_all_phases_counts_in_whatever_order_they_are_known(
    phases: list[Phase],
) -> None:
    made = allocation()
    for each in phases:
        made.is_for(each)
    order = list(Phase)
    assert made.phase is min([*phases, Phase.OTHER], key=order.index)


def test_events_are_numbered_in_order() -> None:
    log = AllocationLog()
    made = allocation()
    assert [log.next_event(), log.next_event()] == [0, 1]
    log.ended(made, 7)
    assert (made.end, made.end_ps) == (2, 7)
