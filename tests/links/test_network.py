"""Collectives on links, held to a slow reference that knows one transfer at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.collectives import Schedule, build, known_algorithms, known_ops, refusal
from kernbench.commands import Engine
from kernbench.errors import InternalError, UsageError
from kernbench.hardware import (
    PLAIN_PROTOCOL,
    Link,
    Machine,
    ProtocolSpec,
    build_machine,
    load_machine,
    transfer_ps,
)
from kernbench.links import Network, Transferred
from kernbench.links.routed_schedule import REDUCE_TRAFFIC, build_link_plan
from kernbench.links.transfer_times import run_on_links
from kernbench.op_log import ROW_COLUMNS
from tests.tiers import examples

ALL = [(op, algorithm) for op in known_ops() for algorithm in known_algorithms(op)]
RING_OPS = ["all_reduce", "all_gather", "reduce_scatter"]


@dataclass(eq=False)
class Transfer:
    """One chunk on its way, in the reference."""

    step: int
    part: str
    src: int
    dst: int
    size_bytes: int
    reduce: bool
    left_ps: int = 0
    head_ps: int = 0
    tail_ps: int = 0


class Reference:
    """Moves one transfer over one link at a time, in the order that the rules give."""

    def __init__(self, machine: Machine, protocol: ProtocolSpec = PLAIN_PROTOCOL) -> None:
        self.machine = machine
        self.protocol = protocol
        self.free_ps = [0] * len(machine.links)

    def run(
        self, schedule: Schedule, sips: tuple[int, ...], starts: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return when every rank is done."""
        cuts = schedule.chunk_bounds.tolist()
        rounds: list[list[list[Transfer]]] = []
        for number, step in enumerate(schedule):
            # A round is issued at once; links serve one burst of it after the other.
            if not number or not step.concurrent:
                rounds.append([[]])
            elif step.behind:
                rounds[-1].append([])
            for src, dst, chunk in zip(step.src, step.dst, step.chunk, strict=True):
                size = (cuts[chunk + step.span] - cuts[chunk]) * schedule.itemsize
                rounds[-1][-1].append(
                    Transfer(number, step.part, int(src), int(dst), size, step.reduce)
                )
        everything = [item for round in rounds for burst in round for item in burst]
        launch = 0
        if everything:
            largest = max(item.size_bytes for item in everything)
            launch = self.protocol.launch_ps(schedule.num_ranks, largest, schedule.size_bytes)
        starts = tuple(start + launch for start in starts)
        ends, taken = list(starts), list(starts)
        for number, round in enumerate(rounds):
            begins = [end + (self.protocol.round_ps if number else 0) for end in ends]
            for burst in round:
                for item in burst:
                    item.head_ps = item.tail_ps = item.left_ps = max(
                        begins[item.src], starts[item.dst]
                    )
                self.carry(burst, sips)
            for entry in (element for burst in round for element in burst):
                taken[entry.dst] = self.take_in(entry, taken[entry.dst], sips)
                ends[entry.dst] = max(ends[entry.dst], taken[entry.dst])
                ends[entry.src] = max(ends[entry.src], entry.left_ps)
        for rank in range(schedule.num_ranks):
            ends[rank] += self.leave(rank, sips, schedule, everything)
        return tuple(ends)

    def leave(
        self, rank: int, sips: tuple[int, ...], schedule: Schedule, everything: list[Transfer]
    ) -> int:
        """Return what a rank does after its last transfer."""
        received = [item for item in everything if item.dst == rank]
        sent = [item.step for item in everything if item.src == rank]
        took = 0
        if received and received[-1].step >= max(sent, default=-1):
            routes = {
                (t.src, t.dst): self.machine.route(sips[t.src], sips[t.dst]) for t in everything
            }
            links = {self.machine.links[index] for route in routes.values() for index in route}
            rate = min((self.rate(link) for link in links), default=None)
            if rate is not None:
                took = self.protocol.tail_ps(received[-1].size_bytes, rate, 0)
        if schedule.fold:
            moved = (schedule.num_ranks + 1) * schedule.size_bytes
            took += self.machine.sip_at(sips[rank]).hbm_stream_ps(moved)
        return took

    def rate(self, link: Link) -> Fraction:
        return link.bandwidth_gbps * self.protocol.bandwidth_share

    def route(self, transfer: Transfer, sips: tuple[int, ...]) -> list[int]:
        """Return the links of the way; -1 for one that another transfer has paid for."""
        route = self.machine.route(sips[transfer.src], sips[transfer.dst])
        if transfer.part == "turn":
            away = sips[transfer.src - 1]
            up, down = (
                self.machine.route(sips[transfer.src], away)[0],
                self.machine.route(away, sips[transfer.src])[1],
            )
            return [up, down]
        if transfer.part == "up":
            return [route[0]]
        if transfer.part == "down":
            transfer.head_ps += self.machine.links[route[0]].latency_ps
            transfer.tail_ps = transfer.head_ps
            return [-1, route[1]]
        return list(route)

    def carry(self, burst: list[Transfer], sips: tuple[int, ...]) -> None:
        routes = {id(item): self.route(item, sips) for item in burst}
        for hop in range(max(map(len, routes.values()), default=0)):
            here = [item for item in burst if hop < len(routes[id(item)])]
            for item in sorted(here, key=lambda entry: entry.head_ps):
                route = routes[id(item)]
                if route[hop] < 0:
                    continue
                link = self.machine.links[route[hop]]
                begin, end = item.head_ps, item.tail_ps
                if item.size_bytes:
                    begin = max(begin, self.free_ps[link.index])
                    end = max(end, begin + transfer_ps(item.size_bytes, self.rate(link)))
                    self.free_ps[link.index] = end
                    if hop == 0 or route[0] < 0:
                        item.left_ps = end
                item.head_ps, item.tail_ps = begin + link.latency_ps, end + link.latency_ps

    def take_in(self, transfer: Transfer, busy: int, sips: tuple[int, ...]) -> int:
        traffic = transfer.size_bytes * (REDUCE_TRAFFIC if transfer.reduce else 1)
        if transfer.part == "up":
            traffic = 0
        memory = self.machine.sip_at(sips[transfer.dst]).hbm_stream_ps(traffic)
        sync = self.protocol.step_ps
        return max(transfer.tail_ps + sync, max(transfer.head_ps + sync, busy) + memory)


def changed(machine: Machine, **links: object) -> Machine:
    """Return the machine with other links (keys of ``LinksSpec``)."""
    assert machine.spec.links is not None
    spec = machine.spec.model_copy(
        update={"links": type(machine.spec.links)(**{**machine.spec.links.model_dump(), **links})}
    )
    return build_machine(spec, machine.num_sips, "test", machine.shape)


def hbm_of(machine: Machine, gbps: int) -> Machine:
    """Return the machine with HBM of that bandwidth per cube."""
    cube = machine.sip.cube.model_copy(update={"hbm_bandwidth_gbps": Fraction(gbps)})
    spec = machine.spec.model_copy(update={"sip": machine.sip.model_copy(update={"cube": cube})})
    return build_machine(spec, machine.num_sips, "test", machine.shape)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Rings, meshes, switches and full graphs, with uneven links and slow or fast HBM."""
    num_sips = draw(st.integers(1, 7))
    name = draw(st.sampled_from(["ahbm", "ahbm-mesh", "a100-sxm-80g"]))
    machine = load_machine(f"{name}:{num_sips}")
    if name == "ahbm" and draw(st.booleans()):
        machine = changed(machine, topology="fully_connected")
    ends = st.sampled_from([(link.src_sip, link.dst_sip) for link in machine.links] or [(0, 0)])
    overrides = [
        {"src_sip": src, "dst_sip": dst, "bandwidth_gbps": gbps, "latency_ns": latency}
        for (src, dst), gbps, latency in draw(
            st.lists(st.tuples(ends, st.integers(1, 300), st.sampled_from([0, 1, 999])), max_size=3)
        )
        if src != dst
    ]
    machine = changed(machine, overrides=overrides)
    return hbm_of(machine, draw(st.sampled_from([1, 20, 1000])))


@st.composite
def collectives(
    draw: st.DrawFn, num_sips: int, behind_a_switch: bool = False
) -> tuple[Schedule, tuple[int, ...], tuple[int, ...]]:
    """A schedule, SIPs in any order, and starts."""
    fitting = [item for item in ALL if num_sips > 1 or item[0] != "send_recv"]
    if not behind_a_switch:
        fitting = [item for item in fitting if item[1] != "in_switch"]
    op, algorithm = draw(st.sampled_from(fitting))
    n = 2 if op == "send_recv" else draw(st.integers(1, num_sips))
    ranks_per_node = draw(st.sampled_from([2, 3])) if algorithm == "hierarchical" else 0
    if refusal(op, algorithm, n, ranks_per_node):
        algorithm = known_algorithms(op)[0]
    sips = tuple(draw(st.permutations(range(num_sips)))[:n])
    size = 0 if op == "barrier" else draw(st.sampled_from([0, 1, n - 1, n, 1000, 300_001]))
    root = draw(st.integers(0, n - 1))
    starts = tuple(draw(st.lists(st.integers(0, 10**7), min_size=n, max_size=n)))
    return build(op, algorithm, n, size, 4, root, (), ranks_per_node), sips, starts


@pytest.mark.slow
@examples(200)
@pytest.mark.adr("0008-D4")
@pytest.mark.adr("0073-D1")
@given(st.data())
def test_times_are_those_of_the_reference(data: st.DataObject) -> None:
    machine = data.draw(machines())
    network, reference = Network(machine), Reference(machine)
    for _ in range(data.draw(st.integers(1, 3))):
        schedule, sips, starts = data.draw(
            collectives(machine.num_sips, machine.topology == "switch")
        )
        result = network.run(schedule, sips, starts)
        assert result.starts_ps == starts
        assert result.ends_ps == reference.run(schedule, sips, starts)
        assert result.template.duration_ps == max(result.ends_ps) - min(starts)


@pytest.mark.adr("0073-D4")
@pytest.mark.parametrize("algorithm", ["scattered", "pairwise", "one_shot"])
@pytest.mark.parametrize("late", [0, 10**6])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 7])
def test_ranks_that_all_do_the_same_take_what_each_takes(algorithm: str, late: int, n: int) -> None:
    """With a late rank they do not."""
    machine = load_machine(f"ahbm:{n}")
    schedule = build("all_to_all", algorithm, n, 1000 * n, 4)
    starts = (*(0,) * (n - 1), late)
    result = Network(machine).run(schedule, tuple(range(n)), starts)
    assert result.ends_ps == Reference(machine).run(schedule, tuple(range(n)), starts)
    assert late or len(set(result.ends_ps)) == 1


@st.composite
def protocols(draw: st.DrawFn) -> ProtocolSpec:
    """Return a protocol with every cost, of odd sizes."""
    us = st.sampled_from([0, 0.0007, 0.5, 7.73])
    share = st.sampled_from([0.25, 0.7, 1])
    values: dict[str, object] = {
        name: draw(us) for name in ("launch_us", "launch_per_rank_us", "step_us", "round_us")
    }
    values["bandwidth_share"] = draw(share)
    values["tail_chunks"] = draw(st.sampled_from([0, 0.41, 1]))
    if draw(st.booleans()):
        values["ramp"] = {
            "us": draw(us),
            "us_per_rank": 0.33,
            "half_kib": 4,
            "power": draw(st.sampled_from([1, 2])),
            "of": draw(st.sampled_from(["chunk", "message"])),
        }
    return ProtocolSpec.model_validate(values)


@pytest.mark.slow
@examples(150)
@pytest.mark.adr("0035-D1")
@given(st.data())
def test_times_in_any_protocol_are_those_of_the_reference(data: st.DataObject) -> None:
    machine = data.draw(machines())
    protocol = data.draw(protocols())
    schedule, sips, starts = data.draw(collectives(machine.num_sips, machine.topology == "switch"))
    plan = build_link_plan(schedule, machine, sips, protocol)
    idle = np.zeros(plan.num_links, dtype=np.int64)
    ends_ps = run_on_links(plan, np.array(starts), idle).ends_ps
    assert tuple(ends_ps.tolist()) == Reference(machine, protocol).run(schedule, sips, starts)


def test_links_between_nodes_carry_a_protocol_at_a_share_of_their_own() -> None:
    machine = load_machine("a100-sxm-80g:16")
    size = 1 << 20
    schedule = build("send_recv", "direct", 2, size, 1)
    protocol = ProtocolSpec(bandwidth_share=Fraction(1, 2), network_share=Fraction(9, 10))
    inside, across = (
        build_link_plan(schedule, machine, sips, protocol).wire_ps.tolist()
        for sips in ((0, 1), (0, 8))
    )
    assert set(inside) == {transfer_ps(size, Fraction(300, 2))}
    assert set(across) == {transfer_ps(size, 25 * Fraction(9, 10))}
    same = ProtocolSpec(bandwidth_share=Fraction(1, 2))
    plain = build_link_plan(schedule, machine, (0, 8), same).wire_ps.tolist()
    assert set(plain) == {transfer_ps(size, Fraction(25, 2))}


def test_a_launch_takes_as_long_as_the_largest_chunk_that_travels_asks_for() -> None:
    """Of one element on two ranks the other rank's chunk is empty: nothing grows with a size."""
    machine = load_machine("ahbm:2")
    ramp = {"us": 1, "us_per_rank": 0, "half_kib": 4, "power": 1, "of": "chunk"}
    protocol = ProtocolSpec.model_validate({"ramp": ramp})
    for size, grows in ((1, False), (2, True)):
        schedule = build("gather", "direct", 2, size, 4, 0)
        assert (build_link_plan(schedule, machine, (0, 1), protocol).entry_ps > 0) == grows


@pytest.mark.slow
@examples(150)
@pytest.mark.adr("0035-D2")
@given(st.data())
def test_no_algorithm_is_faster_than_bandwidth_and_latency_allow(data: st.DataObject) -> None:
    """What leaves a SIP leaves over its links, and what all need takes at least a latency."""
    machine = hbm_of(data.draw(machines()), 10**6)
    switched = machine.topology == "switch"
    schedule, sips, _ = data.draw(collectives(machine.num_sips, switched))
    n = schedule.num_ranks
    if n == 1 or schedule.work_elements == 0:
        return
    took = Network(machine).run(schedule, sips, (0,) * n).template.duration_ps
    away: dict[int, Fraction] = {}
    for link in machine.links:
        away[link.src_sip] = away.get(link.src_sip, Fraction(0)) + link.bandwidth_gbps
    for sip, sent in zip(sips, schedule.sent_bytes().tolist(), strict=True):
        assert took >= transfer_ps(sent, away[sip])
    assert took >= min(link.latency_ps for link in machine.links)
    # The least that a rank must send by the op's definition, whatever the algorithm.
    least = {"all_reduce": 2 * (n - 1), "reduce_scatter": n - 1, "all_gather": n - 1}
    if schedule.op in least and schedule.algorithm != "in_switch":
        total = least[schedule.op] * schedule.size_bytes // schedule.itemsize * schedule.itemsize
        assert (
            took
            >= transfer_ps(total // n, sum((away[sip] for sip in sips), Fraction()) / n) * 9 // 10
        )


def all_reduce(
    network: Network, n: int, size: int, starts: tuple[int, ...] | None = None
) -> Transferred:
    schedule = build("all_reduce", "ring", n, size, 4)
    return network.run(schedule, tuple(range(n)), starts or (0,) * n)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16])
def test_a_ring_on_equal_links_takes_the_closed_form(n: int) -> None:
    machine = load_machine(f"ahbm:{n}")
    result = all_reduce(Network(machine), n, n * 1000)
    step_ps = machine.links[0].latency_ps + machine.links[0].transfer_ps(4000) if n > 1 else 0
    assert result.ends_ps == (2 * (n - 1) * step_ps,) * n


@pytest.mark.adr("0008-D4")
@given(n=st.integers(2, 16), size=st.integers(0, 10**6))
def test_an_all_reduce_is_never_faster_than_bandwidth_and_latency_allow(n: int, size: int) -> None:
    machine = load_machine(f"ahbm:{n}")
    link = machine.links[0]
    took = all_reduce(Network(machine), n, size).template.duration_ps
    assert took >= 2 * (n - 1) * link.latency_ps
    assert took >= Fraction(2 * (n - 1), n) * size * 4 * link.ps_per_byte


@settings(deadline=None)
@given(
    op=st.sampled_from(RING_OPS),
    n=st.integers(2, 9),
    size=st.integers(0, 10**5),
    slow=st.integers(1, 400),
    more=st.integers(0, 400),
)
def test_more_bandwidth_is_never_slower_on_an_idle_network(
    op: str, n: int, size: int, slow: int, more: int
) -> None:
    machine = load_machine(f"ahbm:{n}")
    schedule = build(op, "ring", n, size, 4)
    took = [
        Network(changed(machine, bandwidth_gbps=gbps)).run(schedule, tuple(range(n)), (0,) * n)
        for gbps in (slow, slow + more)
    ]
    assert took[1].template.duration_ps <= took[0].template.duration_ps


@settings(deadline=None)
@given(st.data())
def test_two_runs_have_the_same_times_and_rows(data: st.DataObject) -> None:
    machine = data.draw(machines())
    given_collective = data.draw(collectives(machine.num_sips, machine.topology == "switch"))
    indices = [Network(machine).run(*given_collective) for _ in range(2)]
    assert indices[0].ends_ps == indices[1].ends_ps
    rows = [item.template.make_rows() for item in indices]
    assert all((rows[0][name] == rows[1][name]).all() for name in rows[0])


@given(late=st.integers(0, 10**9), rank=st.integers(1, 7))
def test_a_late_rank_delays_only_what_depends_on_it(late: int, rank: int) -> None:
    """In a chain from rank 0, a rank hands on before it matters that a later one is missing."""
    n, network = 8, Network(load_machine("ahbm:8"))
    schedule = build("broadcast", "ring", n, 1000, 4)
    on_time = network.run(schedule, tuple(range(n)), (0,) * n)
    after = on_time.template.duration_ps * 2
    starts = tuple(after + late * (index == rank) for index in range(n))
    delayed = network.run(schedule, tuple(range(n)), starts)
    gained = [end - after - was for end, was in zip(delayed.ends_ps, on_time.ends_ps, strict=True)]
    assert gained[: rank - 1] == [0] * (rank - 1)
    assert min(gained[rank - 1 :]) >= 0
    assert min(delayed.ends_ps[rank:]) >= starts[rank]


@settings(deadline=None)
@given(n=st.integers(1, 9), starts=st.data())
def test_nobody_leaves_a_barrier_before_everybody_arrived(n: int, starts: st.DataObject) -> None:
    network = Network(load_machine(f"ahbm:{n}"))
    arrived = tuple(starts.draw(st.lists(st.integers(0, 10**9), min_size=n, max_size=n)))
    left = network.run(build("barrier", "auto", n, 0, 1), tuple(range(n)), arrived).ends_ps
    assert min(left) >= max(arrived)


@pytest.mark.adr("0008-D6")
def test_two_collectives_on_the_same_links_are_slower_than_one() -> None:
    network = Network(load_machine("ahbm:4"))
    first, second = all_reduce(network, 4, 10**6), all_reduce(network, 4, 10**6)
    assert max(second.ends_ps) >= max(first.ends_ps) * 3 // 2
    assert first.ends_ps == all_reduce(Network(load_machine("ahbm:4")), 4, 10**6).ends_ps


def test_two_collectives_on_disjoint_links_do_not_meet() -> None:
    network = Network(load_machine("ahbm-mesh:2x2"))
    schedule = build("all_reduce", "ring", 2, 10**6, 4)
    rows = [network.run(schedule, sips, (0, 0)) for sips in ((0, 1), (2, 3))]
    assert rows[0].ends_ps == rows[1].ends_ps


def test_subgroups_with_a_stride_share_the_links_between_their_members() -> None:
    """On a ring of 8 the groups 0 2 4 6 and 1 3 5 7 cross each link together."""
    network = Network(load_machine("ahbm:8"))
    schedule = build("all_reduce", "ring", 4, 10**6, 4)
    even = network.run(schedule, (0, 2, 4, 6), (0,) * 4)
    odd = network.run(schedule, (1, 3, 5, 7), (0,) * 4)
    assert max(odd.ends_ps) > max(even.ends_ps)
    latency = load_machine("ahbm:8").links[0].latency_ps
    neighbours = Network(load_machine("ahbm:4")).run(schedule, (0, 1, 2, 3), (0,) * 4)
    assert max(even.ends_ps) == max(neighbours.ends_ps) + 2 * 3 * latency


def test_a_link_is_waited_for_until_it_is_free() -> None:
    machine = load_machine("ahbm:2")
    network = Network(machine)
    send = build("send_recv", "direct", 2, 1000, 4)
    wire_ps, latency_ps = machine.links[0].transfer_ps(4000), machine.links[0].latency_ps
    assert network.run(send, (0, 1), (0, 0)).ends_ps == (wire_ps, wire_ps + latency_ps)
    assert network.run(send, (0, 1), (10, 0)).ends_ps == (2 * wire_ps, 2 * wire_ps + latency_ps)
    back = network.run(send, (1, 0), (0, 0)).ends_ps
    assert back == (wire_ps, wire_ps + latency_ps), "the other direction is free"


def test_an_empty_chunk_neither_waits_for_a_link_nor_holds_it() -> None:
    machine = load_machine("ahbm:2")
    network = Network(machine)
    signal, send = (build("send_recv", "direct", 2, size, 4) for size in (0, 1000))
    latency_ps, wire_ps = machine.links[0].latency_ps, machine.links[0].transfer_ps(4000)
    assert network.run(signal, (0, 1), (10**6, 10**6)).ends_ps[1] == 10**6 + latency_ps
    assert network.run(send, (0, 1), (0, 0)).ends_ps[0] == wire_ps
    assert network.run(signal, (0, 1), (0, 0)).ends_ps[1] == latency_ps


def test_a_sender_waits_for_the_receiver_to_enter() -> None:
    machine = load_machine("ahbm:2")
    ends = Network(machine).run(build("send_recv", "direct", 2, 9, 4), (0, 1), (0, 5000)).ends_ps
    assert ends[0] == 5000 + machine.links[0].transfer_ps(36)


def test_slow_hbm_bounds_a_reduction() -> None:
    machine = hbm_of(load_machine("ahbm:4"), 1)
    schedule = build("reduce_scatter", "ring", 4, 10**6, 4)
    ends = Network(machine).run(schedule, (0, 1, 2, 3), (0,) * 4).ends_ps
    assert min(ends) >= machine.sip.hbm_stream_ps(3 * REDUCE_TRAFFIC * 10**6)


@pytest.mark.adr("0008-D5")
@given(shift=st.integers(0, 10**15))
def test_an_equal_collective_shares_its_template_at_any_time(shift: int) -> None:
    network = Network(load_machine("ahbm:4"))
    starts = (5, 0, 9, 2)
    first = all_reduce(network, 4, 1003, starts)
    after = max(first.ends_ps) + shift
    second = all_reduce(network, 4, 1003, tuple(after + start for start in starts))
    assert second.template is first.template
    assert second.ends_ps == tuple(after + end for end in first.ends_ps)


def test_what_is_known_is_bounded() -> None:
    """A thousand different skews are timed, and none of them is wrong."""
    network = Network(load_machine("ahbm:2"))
    schedule = build("send_recv", "direct", 2, 100, 4)
    wire_ps = load_machine("ahbm:2").links[0].transfer_ps(400)
    for skew in range(1000):
        start = 10**6 * skew
        assert network.run(schedule, (0, 1), (start, start + skew)).ends_ps[0] == (
            start + skew + wire_ps
        )


def test_one_rank_or_no_steps_takes_no_time() -> None:
    result = Network(load_machine("ahbm:1")).run(build("all_reduce", "ring", 1, 9, 4), (0,), (7,))
    assert result.ends_ps == (7,)
    assert result.template.duration_ps == 0
    assert all(len(column) == 0 for column in result.template.make_rows().values())


def test_what_a_switch_adds_is_no_work_of_a_sip() -> None:
    schedule = build("all_reduce", "in_switch", 2, 1, 4)
    template = Network(load_machine("a100-sxm-80g", 2)).run(schedule, (0, 1), (0, 0)).template
    rows = template.make_rows()
    assert template.flops == rows["flops"].sum() == 0
    assert "reduce" in rows["kind"]


@pytest.mark.slow
@pytest.mark.adr("0008-D5")
@settings(deadline=None)
@given(st.data())
def test_rows_list_every_transfer_and_never_overlap_on_a_link(data: st.DataObject) -> None:
    machine = data.draw(machines())
    schedule, sips, starts = data.draw(collectives(machine.num_sips, machine.topology == "switch"))
    result = Network(machine).run(schedule, sips, starts)
    rows = result.template.make_rows()
    assert rows.keys() <= set(ROW_COLUMNS)
    received = rows["link"] < 0
    wanted = sorted(
        (number, int(dst), int(src), int(chunk), "reduce" if step.reduce else "receive")
        for number, step in enumerate(schedule)
        for src, dst, chunk in zip(step.src, step.dst, step.chunk, strict=True)
    )
    columns = [rows[name][received].tolist() for name in ("step", "rank", "peer", "chunk", "kind")]
    assert sorted(zip(*columns, strict=True)) == wanted
    if wanted:
        assert rows["end_ps"].max() <= result.template.duration_ps
        assert (rows["start_ps"] <= rows["end_ps"]).all()
        assert (rows["busy_ps"] <= rows["end_ps"] - rows["start_ps"]).all()
    for link in set(rows["link"][~received].tolist()):
        on_link = (rows["link"] == link) & (rows["bytes"] > 0)
        spans = sorted(
            zip(rows["start_ps"][on_link].tolist(), rows["end_ps"][on_link].tolist(), strict=True)
        )
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
    if not schedule.fold:
        assert set(rows["flops"][rows["kind"] != "reduce"].tolist()) <= {0}
    assert rows["flops"].sum() == result.template.flops


def test_a_template_counts_messages_as_nccl_tests_does_and_bytes_once() -> None:
    template = all_reduce(Network(load_machine("ahbm:4")), 4, 1000).template
    assert (template.name, template.kind, template.algorithm) == (
        "all_reduce",
        "collective",
        "ring",
    )
    assert template.message_bytes == 4000
    assert template.flops == 3 * 1000
    # Per rank: 6 chunks read to be sent, 3 reduced, 3 written.
    assert template.hbm_bytes_by_rank == ((6 + 3 * REDUCE_TRAFFIC + 3) * 1000,) * 4
    assert template.hbm_bytes == sum(template.hbm_bytes_by_rank)
    assert template.bound_ps == template.engine_busy_ps[Engine.LINK] == 6 * 10_000


def test_what_a_collective_asks_of_hbm_is_what_its_ranks_read_and_write() -> None:
    network = Network(hbm_of(load_machine("ahbm:4"), 100))
    result = network.run(build("all_reduce", "ring", 2, 10**6, 4), (0, 1), (0, 10**6))
    # 2 steps of half the tensor: read 2, reduce 1, write 1, over 4 cubes of 100 GB/s.
    moved = (2 + REDUCE_TRAFFIC + 1) * 2 * 10**6
    assert result.hbm_ps == (moved * 1000 // 400,) * 2


@pytest.mark.adr("0036-D6")
def test_who_comes_after_a_collective_that_was_slowed_down_finds_its_links_taken() -> None:
    network = Network(load_machine("ahbm:2"))
    alone = all_reduce(Network(load_machine("ahbm:2")), 2, 10**6)
    first = all_reduce(network, 2, 10**6)
    network.delay(first, 0, 500)
    second = all_reduce(network, 2, 10**6)
    assert min(second.ends_ps) > max(alone.ends_ps) + 500
    # The links belong to the second one now.
    network.delay(first, 0, 10**9)
    third = all_reduce(network, 2, 10**6)
    assert max(third.ends_ps) < 10**9


def test_a_group_that_does_not_fit_the_schedule_is_an_internal_error() -> None:
    network = Network(load_machine("ahbm:4"))
    with pytest.raises(InternalError, match="4 ranks was given 3 SIPs and 4 starts"):
        network.run(build("all_reduce", "ring", 4, 4, 4), (0, 1, 2), (0,) * 4)


@pytest.mark.parametrize("n", [1, 2])
def test_a_sip_that_is_not_there_is_refused(n: int) -> None:
    network = Network(load_machine("ahbm:4"))
    with pytest.raises(UsageError, match="SIPs 0 to 3, but SIP 4"):
        network.run(build("all_reduce", "ring", n, 4, 4), (4, 1)[:n], (0,) * n)
