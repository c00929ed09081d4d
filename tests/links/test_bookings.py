"""Transfers of kernels on links, held to a link that is a list of ticks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.collectives import build
from kernbench.hardware import load_machine
from kernbench.links import Network
from kernbench.links.bookings import LinkBookings
from tests.tiers import examples

requests = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=40)


@pytest.mark.adr("0032-D4")
@given(requests)
def test_each_takes_the_first_free_ticks_after_it_is_ready(asked: list[tuple[int, int]]) -> None:
    link, ticks = LinkBookings(), np.zeros(1000, dtype=bool)
    for ready, wire in asked:
        mine = ready + np.flatnonzero(~ticks[ready:])[:wire]
        ticks[mine] = True
        expected = (mine[0], mine[-1] + 1) if wire else (ready, ready)
        assert link.book(ready, wire) == expected
    assert link.end_ps == 1 + max(np.flatnonzero(ticks), default=-1)


@given(requests, st.randoms(use_true_random=False))
def test_when_all_has_passed_does_not_depend_on_the_order(asked, random) -> None:
    shuffled = list(asked)
    random.shuffle(shuffled)
    links = LinkBookings(), LinkBookings()
    for link, order in zip(links, (asked, shuffled), strict=True):
        for ready, wire in order:
            link.book(ready, wire)
    assert links[0].end_ps == links[1].end_ps


def test_many_bookings_take_bounded_memory_and_never_overlap() -> None:
    link = LinkBookings()
    taken = [link.book(3 * index, 1) for index in range(5000)]
    assert taken == [(3 * index, 3 * index + 1) for index in range(5000)]
    assert len(link._starts) < 1000
    # So long ago that nobody knows what was free.
    assert link.book(0, 1)[0] > 3 * 4000


MACHINE = load_machine("ahbm", 8)


@pytest.mark.adr("0032-D4")
@given(
    src=st.integers(0, 7), dst=st.integers(0, 7), size=st.integers(0, 1 << 20), at=st.integers(0, 9)
)
def test_a_transfer_alone_takes_latencies_and_the_slowest_link(
    src: int, dst: int, size: int, at: int
) -> None:
    network = Network(MACHINE)
    links = [MACHINE.links[index] for index in MACHINE.route(src, dst)]
    passage = network.transfer(src, dst, size, at)
    latency_ps = sum(link.latency_ps for link in links)
    assert latency_ps == network.latency_ps(src, dst)
    assert passage.head_ps == at + latency_ps
    assert passage.tail_ps == passage.head_ps + max(
        (link.transfer_ps(size) for link in links), default=0
    )
    assert [hop.link for hop in passage.hops] == [link.index for link in links]


@examples(25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 7), st.integers(0, 7), st.integers(1, 1 << 16), st.integers(0, 50)
        ),
        min_size=1,
        max_size=30,
    )
)
def test_no_link_carries_more_than_it_can(transfers: list[tuple[int, int, int, int]]) -> None:
    network = Network(MACHINE)
    busy: dict[int, int] = {}
    last: dict[int, int] = {}
    for src, dst, size, at in transfers:
        for hop in network.transfer(src, dst, size, at).hops:
            busy[hop.link] = busy.get(hop.link, 0) + hop.busy_ps
            last[hop.link] = max(last.get(hop.link, 0), hop.end_ps)
            assert hop.end_ps - hop.start_ps >= hop.busy_ps
    assert all(last[link] >= busy[link] for link in busy)


@pytest.mark.adr("0032-D4")
@pytest.mark.parametrize("collective_first", [False, True])
def test_a_collective_and_a_transfer_do_not_overlap_on_a_link(collective_first: bool) -> None:
    machine = load_machine("ahbm", 2)
    size = 1 << 20
    schedule = build("broadcast", "ring", 2, size, 1)
    (index,) = machine.route(0, 1)
    wire_ps = machine.links[index].transfer_ps(size)
    alone_ps = max(Network(machine).run(schedule, (0, 1), (0, 0)).ends_ps)
    network = Network(machine)
    if collective_first:
        network.run(schedule, (0, 1), (0, 0))
        end_ps = network.transfer(0, 1, size, 0).tail_ps
    else:
        network.transfer(0, 1, size, 0)
        end_ps = max(network.run(schedule, (0, 1), (0, 0)).ends_ps)
    assert end_ps >= 2 * wire_ps + machine.links[index].latency_ps
    assert end_ps <= alone_ps + wire_ps + machine.links[index].latency_ps
