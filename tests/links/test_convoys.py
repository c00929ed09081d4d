"""Links that many transfers cross on long ways: they are busy as long as there is work for them."""

from __future__ import annotations

import heapq
import json

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernbench.collectives import build, known_algorithms, refusal
from kernbench.hardware import Machine, load_machine, parse_machine
from kernbench.links import Asked, Network, Selector
from kernbench.links.idle_times import IdleTimes, least_ps
from kernbench.links.servers import in_order_of_arrival, serve
from tests.tiers import examples, of_campaigns

MIB = 2**20


def joined(topology: str, num_sips: int, scale_out: bool = False) -> Machine:
    """Return ``ahbm`` with other links; grids are as even as can be."""
    links: dict[str, object] = {"topology": topology, "bandwidth_gbps": 100, "latency_ns": 500}
    if scale_out:
        links["scale_out"] = {
            "sips_per_node": 8,
            "topology": "switch",
            "bandwidth_gbps": 25,
            "latency_ns": 2500,
        }
    spec = json.loads(load_machine("ahbm").spec.model_dump_json())
    data = {**spec, "links": links, "sizes": [num_sips], "sources": {}}
    return parse_machine(yaml.safe_dump(data), "test", num_sips)


def busiest_ps(machine: Machine, part_bytes: int) -> int:
    """Return how long the busiest link carries parts of every SIP for every other one."""
    every = np.arange(machine.num_sips)
    load = np.zeros(len(machine.links), dtype=np.int64)
    for src in every.tolist():
        for dst in every[every != src].tolist():
            load[list(machine.route(src, dst))] += 1
    times = [link.transfer_ps(part_bytes) for link in machine.links]
    return int((load * times).max())


def by_events_ps(machine: Machine, part_bytes: int) -> int:
    """Return when the last of all parts arrives where links serve who comes first, by events."""
    every = range(machine.num_sips)
    free = [0] * len(machine.links)
    events = [
        (0, (dst - src) % machine.num_sips, src, 0, 0, machine.route(src, dst))
        for src in every
        for dst in every
        if src != dst
    ]
    heapq.heapify(events)
    last = 0
    while events:
        head, shift, src, hop, tail, route = heapq.heappop(events)
        link = machine.links[route[hop]]
        begin = max(head, free[link.index])
        end = free[link.index] = max(begin + link.transfer_ps(part_bytes), tail)
        following = begin + link.latency_ps, shift, src, hop + 1, end + link.latency_ps, route
        last = max(last, following[4])
        if hop + 1 < len(route):
            heapq.heappush(events, following)
    return last


@pytest.mark.slow
@pytest.mark.adr("0073-D2")
@pytest.mark.parametrize(
    ("topology", "factor"),
    [
        of_campaigns("ring", 1.01),
        ("switch", 1.01),
        ("mesh2d", 1.25),
        of_campaigns("mesh3d", 1.25),
        of_campaigns("torus2d", 1.25),
        ("torus3d", 1.35),
    ],
)
def test_an_all_to_all_is_near_what_its_busiest_link_needs(topology: str, factor: float) -> None:
    """On tori the busiest links are many, and a wait on one of them is made good by nobody."""
    machine = joined(topology, 64)
    sips = tuple(range(64))
    asked = Asked("all_to_all", 64, 16 * MIB, 4)
    took = Selector(machine).choose(asked, sips).time_ps
    bound = busiest_ps(machine, MIB)
    assert took is not None
    assert bound <= took <= factor * bound


@pytest.mark.slow
@pytest.mark.adr("0073-D2")
@examples(15)
@given(
    topology=st.sampled_from(["ring", "mesh2d", "torus2d", "switch"]),
    num_sips=st.sampled_from([4, 9, 12, 16, 25, 36]),
    part=st.sampled_from([64 * 1024, MIB]),
)
def test_it_is_not_far_from_links_that_serve_who_comes_first(
    topology: str, num_sips: int, part: int
) -> None:
    machine = joined(topology, num_sips)
    sips = tuple(range(num_sips))
    by_events = by_events_ps(machine, part)
    took = Selector(machine).choose(Asked("all_to_all", num_sips, num_sips * part, 1), sips)
    assert took.time_ps is not None
    assert 0.9 * by_events <= took.time_ps <= 1.25 * by_events
    # On a mesh of 2 x 2 and a torus of 4 x 4 every rank waits for a round of its neighbour's.
    schedule = build("all_to_all", "scattered", num_sips, num_sips * part, 1)
    scattered = Network(machine).run(schedule, sips, (0,) * num_sips)
    assert 0.9 * by_events <= max(scattered.ends_ps) <= 1.5 * by_events


@given(
    servers=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    data=st.data(),
    scale=st.sampled_from([1, 10**9, 2**58]),
)
@pytest.mark.adr("0073-D1")
def test_queues_served_at_once_are_those_of_one_after_the_other(
    servers: list[int], data: st.DataObject, scale: int
) -> None:
    """At a scale where pieces cannot be laid one above the other, too."""
    n = len(servers)
    times = st.lists(st.integers(0, 9), min_size=n, max_size=n)
    work, head, late = (np.array(data.draw(times)) for _ in range(3))
    work, head = work * (scale if scale < 2**40 else 1), head * scale // 9
    tail = head + late
    free = np.array(data.draw(st.lists(st.integers(0, 50), min_size=5, max_size=5)))
    expected_free = free.tolist()
    expected = {}
    for place in sorted(range(n), key=lambda item: (head[item], item)):
        begin = max(int(head[place]), expected_free[servers[place]])
        end = max(begin + int(work[place]), int(tail[place]))
        expected[place] = begin, end
        expected_free[servers[place]] = end
    at = np.array(servers)
    result = serve(at, in_order_of_arrival(at, head), work, head, tail, free)
    assert list(zip(*(entry.tolist() for entry in result), strict=True)) == [
        expected[place] for place in range(n)
    ]
    assert free.tolist() == expected_free


@pytest.mark.slow
@pytest.mark.adr("0073-D3")
@examples(25)
@given(
    topology=st.sampled_from(["ring", "mesh2d", "torus2d", "switch", "fully_connected"]),
    op=st.sampled_from(
        ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather"]
    ),
    num_ranks=st.integers(2, 12),
    size=st.sampled_from([0, 1, 4096, MIB]),
)
def test_what_is_never_timed_could_not_have_been_faster(
    topology: str, op: str, num_ranks: int, size: int
) -> None:
    """The bound is one, a limit only ends what is over it, and the choice is the fastest."""
    machine = joined(topology, num_ranks)
    sips = tuple(range(num_ranks))
    selector = Selector(machine)
    times = {}
    for algorithm in known_algorithms(op):
        if algorithm in ("in_switch", "hierarchical") or refusal(op, algorithm, num_ranks):
            continue
        idle, protocol = IdleTimes(machine), selector.protocol(op, algorithm, "")
        plan = idle.plan(build(op, algorithm, num_ranks, size, 4), sips, "", protocol)
        timing = idle.timing(plan, "")
        assert timing is not None
        times[algorithm] = took = int(timing.ends_ps.max())
        assert least_ps(plan) <= took
        assert IdleTimes(machine).timing(plan, "", took) is not None
        assert IdleTimes(machine).timing(plan, "", took - 1) is None
        assert idle.timing(plan, "", took - 1) is None
    choice = selector.choose(Asked(op, num_ranks, size, 4), sips)
    assert choice.time_ps == min(times.values())
    assert choice.algorithm == min(times, key=lambda item: times[item])


@pytest.mark.slow
@pytest.mark.adr("0073-D3")
def test_what_was_timed_to_be_chosen_is_not_timed_again() -> None:
    machine = joined("ring", 8)
    network, sips = Network(machine), tuple(range(8))
    asked = Asked("all_to_all", 8, MIB, 4)
    choice = network.selector.choose(asked, sips)
    schedule = choice.build(asked)
    plan = network.selector.idle_times.plan(
        schedule,
        sips,
        choice.protocol,
        network.selector.protocol("all_to_all", choice.algorithm, ""),
    )
    known = network.selector.idle_times.timing(plan, choice.protocol)
    placed = network.run(schedule, sips, (5,) * 8, choice.protocol)
    assert known is not None
    assert [end - 5 for end in placed.ends_ps] == known.ends_ps.tolist()
    assert network.selector.idle_times.timing(plan, choice.protocol) is known
    assert placed.ends_ps == Network(machine).run(schedule, sips, (5,) * 8, "").ends_ps
