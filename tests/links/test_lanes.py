"""Channels of collective libraries between nodes: striped rings, and trees in pieces.

See docs/model/collectives.md.
"""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

from kernbench.hardware import Machine, between_nodes, changed_machine, known_machines, load_machine
from kernbench.hardware.collective_specs import ChannelSpec
from kernbench.links import Asked, Network
from kernbench.links.routed_schedule import build_link_plan
from kernbench.links.transfer_times import run_on_links
from tests.tiers import of_campaigns

MIB = 2**20


def placed_us(machine: Machine, algorithm: str, size: int, protocol: str = "simple") -> float:
    sips = tuple(range(machine.num_sips))
    network = Network(machine)
    asked = Asked("all_reduce", machine.num_sips, size // 2, 2)
    choice = network.selector.choose(asked, sips, algorithm, protocol)
    placed = network.run(choice.build(asked), sips, (0,) * len(sips), choice.protocol)
    return placed.template.duration_ps / 1e6


def test_a_large_ring_is_bound_by_all_ports_of_a_node_together() -> None:
    """2 (n - 1) / n of the message leaves each node, over 8 ports of 25 GB/s, or 4 of them."""
    size = 4096 * MIB
    for nics in (8, 4):
        machine = changed_machine(
            load_machine("a100-sxm-80g:4x8"), {"links.scale_out.nics_per_node": nics}
        )
        library = machine.spec.collectives
        assert library is not None
        gbps = nics * 25 * float(library.of_class("chained")["simple"].share(between_nodes=True))
        least_us = 2 * 31 / 32 * size / (gbps * 1e3)
        assert placed_us(machine, "ring", size) == pytest.approx(least_us, rel=0.12)


def test_a_ring_holds_all_ports_until_it_is_done() -> None:
    machine = load_machine("h100-sxm:2x8")
    network, sips = Network(machine), tuple(range(16))
    asked = Asked("all_reduce", 16, 64 * MIB, 2)
    choice = network.selector.choose(asked, sips, "ring", "simple")
    first = network.run(choice.build(asked), sips, (0,) * 16, choice.protocol)
    # SIPs 3 and 11 end neither chain, but their ports carried a share of it.
    passage = network.transfer(3, 11, 1000, 0)
    assert passage.hops[0].start_ps > 0.8 * max(first.ends_ps)
    idle = Network(machine).transfer(3, 11, 1000, 0)
    assert idle.hops[0].start_ps == 0


def test_a_small_tree_takes_chains_and_a_hop_up_and_down_per_doubling_of_nodes() -> None:
    by_nodes = {
        n: placed_us(load_machine(f"abci-a100:{n}x8"), "rail_tree", 64, "ll") for n in (2, 4, 16)
    }
    library = load_machine("abci-a100:2x8").spec.collectives
    assert library is not None
    step_us = library.of_class("chained")["ll"].network_step_us
    assert step_us is not None
    hop_us = float(step_us) + 2 * 1.0
    assert by_nodes[4] - by_nodes[2] == pytest.approx(2 * hop_us, rel=0.05)
    assert by_nodes[16] - by_nodes[4] == pytest.approx(4 * hop_us, rel=0.05)


def test_a_large_tree_in_pieces_takes_what_its_ports_carry() -> None:
    """In two nodes each sends the message once: half as a leaf of one tree, half as a root."""
    size = 4096 * MIB
    machine = load_machine("p4de:2x8")
    library = machine.spec.collectives
    assert library is not None
    share = float(library.of_class("chained")["simple"].share(between_nodes=True))
    least_us = size / (50 * share * 1e3)
    assert placed_us(machine, "rail_tree", size) == pytest.approx(least_us, rel=0.02)
    one = ChannelSpec(least_kib=1, pieces=1, piece_kib=size >> 10, most_kib=size >> 10)
    whole = library.of_class("chained")["simple"].model_copy(update={"channel": one})
    asked = Asked("all_reduce", 16, size // 4, 4)
    choice = Network(machine).selector.choose(asked, tuple(range(16)), "rail_tree", "simple")
    plan = build_link_plan(choice.build(asked), machine, range(16), whole)
    idle = np.zeros(plan.num_links, dtype=np.int64)
    ends_ps = run_on_links(plan, np.zeros(16, dtype=np.int64), idle).ends_ps
    assert ends_ps.max() / 1e6 > 1.5 * least_us, "without pieces phases add up"


def test_one_rank_per_node_has_trees_too() -> None:
    machine = load_machine("abci-a100:16x8")
    network, sips = Network(machine), tuple(range(3, 128, 8))
    asked = Asked("all_reduce", 16, 16, 4)
    choice = network.selector.choose(asked, sips)
    assert (choice.algorithm, choice.ranks_per_node) == ("rail_tree", 1)


@pytest.mark.parametrize(
    ("spec", "ranks", "limit_s"), [("128x8", 1024, 3), of_campaigns("2048x8", 16384, 30)]
)
def test_an_all_reduce_of_a_cluster_is_timed_in_seconds(
    spec: str, ranks: int, limit_s: int
) -> None:
    since = time.perf_counter()
    network, sips = Network(load_machine(f"h100-sxm:{spec}")), tuple(range(ranks))
    asked = Asked("all_reduce", ranks, 32 * MIB, 2)
    choice = network.selector.choose(asked, sips)
    network.run(choice.build(asked), sips, (0,) * ranks, choice.protocol)
    assert choice.algorithm in ("ring", "rail_tree")
    assert time.perf_counter() - since < 3 * limit_s, "of a machine that does nothing else"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20


def exchanged_us(machine: Machine, op: str, elements: int) -> float:
    network, sips = Network(machine), tuple(range(machine.num_sips))
    asked = Asked(op, len(sips), elements, 1)
    choice = network.selector.choose(asked, sips)
    placed = network.run(choice.build(asked), sips, (0,) * len(sips), choice.protocol)
    return placed.template.duration_ps / 1e6


def test_a_rank_copies_its_own_part_where_blocks_are_slower_than_links() -> None:
    key, size = "collectives.point_to_point.simple.own_part", 512 * MIB
    b200 = load_machine("b200:8")
    library = b200.spec.collectives
    assert library is not None
    assert library.point_to_point is not None
    gbps = 900 * float(library.point_to_point["simple"].bandwidth_share)
    none, own = (
        exchanged_us(changed_machine(b200, {key: it}), "all_to_all", size) for it in (0, 1)
    )
    assert own - none == pytest.approx(size / 8 / (gbps * 1e3), rel=1e-6)
    # A message has no own part.
    pair = load_machine("b200:2")
    sent = [exchanged_us(changed_machine(pair, {key: it}), "send_recv", size) for it in (0, 1)]
    assert sent[0] == sent[1]


@pytest.mark.adr("0289-D1")
def test_what_protocols_are_between_nodes_is_the_same_on_every_network() -> None:
    """A machine says two numbers of its network; steps and payloads of protocols go by these."""
    networks = 0
    for name in known_machines():
        library = load_machine(name, 1).spec.collectives
        if library is None or library.network is None:
            continue
        networks += 1
        for key, protocol in library.of_class("chained").items():
            shared = between_nodes()[key]  # type: ignore[index]
            assert protocol.network_step_us == library.network.step_us * shared.steps, name
            assert protocol.network_share == library.network.share * shared.share, name
    assert networks > 20
    own = changed_machine(
        load_machine("p5:2x8"), {"collectives.protocols.ll.network_step_us": 7}
    ).spec.collectives
    assert own is not None
    assert own.of_class("chained")["ll"].network_step_us == 7, "what a file says of one counts"


@pytest.mark.adr("0289-D2")
@pytest.mark.parametrize(("kib", "channels"), [(4, 1), (16, 4), (96, 24)])
def test_a_small_message_takes_few_channels_each_with_its_part_of_a_link(
    kib: int, channels: int
) -> None:
    """In two nodes of 8 a part goes along 7 links, up, down, and along 7 links, 4 KiB at a time."""
    # Ports that take no time leave those links.
    machine = changed_machine(
        load_machine("abci-a100:2x8"), {"links.scale_out.bandwidth_gbps": 10**6}
    )
    library = machine.spec.collectives
    assert library is not None
    network, sips = Network(machine), tuple(range(16))
    costs = library.of_class("chained")["ll"]
    assert costs.channel is not None
    assert costs.channel.first(kib << 10, library.channels) == (channels, 4096)

    def placed(size: int) -> float:
        choice = network.selector.choose(Asked("all_reduce", 16, size, 1), sips, "rail_tree", "ll")
        schedule = choice.build(Asked("all_reduce", 16, size, 1))
        return Network(machine).run(schedule, sips, (0,) * 16, "ll").template.duration_ps / 1e6

    link_us = 4096 * 24 / (300 * float(costs.bandwidth_share) * 1e3)
    # Beside that channels ramp up, by the chunk.
    ramp_us = (costs.launch_ps(8, kib * 64, kib << 10) - costs.launch_ps(8, 1, 16)) / 1e6
    assert placed(kib << 10) - placed(16) == pytest.approx(14 * link_us + ramp_us, rel=0.1)


@pytest.mark.parametrize("name", ["h100-sxm", "h200", "a100-sxm-40g", "b200", "b300"])
def test_a_hop_between_nodes_of_a_vendors_machine_is_counted_once(name: str) -> None:
    """The wires, and what a host's thread takes: with LL together what NCCL says of a hop."""
    machine = load_machine(f"{name}:2x1")
    library = machine.spec.collectives
    assert library is not None
    assert library.network is not None
    outer = {link.latency_ps for link in machine.links[machine.num_inner_links :]}
    (wire_ps,) = outer
    assert 2 * wire_ps + int(library.network.step_us * 10**6) == 5 * 10**6
    for protocol, costs in library.of_class("chained").items():
        steps = between_nodes()[protocol].steps  # type: ignore[index]
        assert costs.network_ps + costs.step_ps == library.network.step_us * steps * 10**6


def test_a_message_to_another_node_takes_a_launch_a_hop_and_its_bytes() -> None:
    machine = load_machine("h100-sxm:2x1")
    library = machine.spec.collectives
    assert library is not None
    costs = library.of_class("point_to_point")["simple"]
    size = 64 * MIB
    launch_us = costs.launch_ps(2, size, size) / 1e6
    bytes_us = size / (50 * float(costs.share(between_nodes=True)) * 1e3)
    hop_us = 2 * 0.5 + float(costs.network_step_us or 0)
    result = exchanged_us(machine, "send_recv", size)
    assert result == pytest.approx(launch_us + hop_us + bytes_us, rel=1e-6)
