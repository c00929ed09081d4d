"""Links between switches, which all ports share: bytes over their bandwidth, whoever sends them."""

from __future__ import annotations

import pytest

from kernbench.hardware import Machine, changed_machine, load_machine
from kernbench.links import Asked, Network

MIB = 2**20
PORT_GBPS = 50 * 0.98


def leafy(size: str, **leaves: object) -> Machine:
    return changed_machine(load_machine(f"h100-sxm:{size}"), {"links.scale_out.leaves": leaves})


def send(network: Network, src: int, dst: int, size: int) -> float:
    """Return when a message that was sent at 0 has arrived, in us."""
    asked = Asked("send_recv", 2, size, 1)
    choice = network.selector.choose(asked, (src, dst))
    placed = network.run(choice.build(asked), (src, dst), (0, 0), choice.protocol)
    return max(placed.ends_ps) / 1e6


@pytest.mark.adr("0034-D8")
@pytest.mark.parametrize("oversubscription", [1, 2, 4, 8])
def test_groups_that_run_at_one_time_share_the_links_between_switches(
    oversubscription: int,
) -> None:
    """Eight messages leave a switch with eight ports: each at its port's rate, or at a share."""
    size = 64 * MIB
    machine = leafy("2x8", nodes=1, oversubscription=oversubscription)
    alone = send(Network(machine), 0, 8, size)
    port_us = size / (PORT_GBPS * 1e3)
    network = Network(machine)
    last = max(send(network, place, 8 + place, size) for place in range(8))
    # Those of one round have the spine one after the other; the last ends with the sum.
    assert last == pytest.approx(alone + (oversubscription - 1) * port_us, rel=0.01)


@pytest.mark.adr("0034-D8")
def test_two_messages_of_one_leaf_do_not_meet() -> None:
    machine = leafy("4x2", nodes=2, oversubscription=8)
    size, network = 64 * MIB, Network(machine)
    within = send(Network(machine), 0, 2, size)
    far = send(network, 0, 4, size)
    # Four ports of a leaf have half of one between them, and the second message waits for both.
    port_us = size / (PORT_GBPS * 1e3)
    assert far == pytest.approx(within + port_us, rel=0.01)
    assert send(network, 1, 3, size) == within
    assert send(network, 3, 5, size) == pytest.approx(within + 3 * port_us, rel=0.01)


@pytest.mark.adr("0034-D8")
def test_a_collective_is_bound_by_what_crosses_the_spine() -> None:
    """Of an all_to_all on four nodes of two leaves, half of the bytes cross."""
    size, ranks = 64 * MIB, 16
    for oversubscription in (8, 32):
        machine = leafy("4x4", nodes=2, oversubscription=oversubscription)
        sips = tuple(range(ranks))
        network = Network(machine)
        asked = Asked("all_to_all", ranks, size, 1)
        choice = network.selector.choose(asked, sips, "one_shot")
        placed = network.run(choice.build(asked), sips, (0,) * ranks, choice.protocol)
        crossing = 8 * 8 * size / ranks
        spine_us = crossing / (8 * PORT_GBPS / oversubscription * 1e3)
        assert placed.template.duration_ps / 1e6 == pytest.approx(spine_us, rel=0.05)


@pytest.mark.adr("0034-D8")
def test_rails_that_stay_in_their_switch_do_not_need_the_spine() -> None:
    asked = Asked("all_reduce", 32, 64 * MIB, 2)
    times = []
    for keys in ({}, {"nodes": 4, "ports": "rail", "oversubscription": 16}):
        machine = leafy("4x8", **keys) if keys else load_machine("h100-sxm:4x8")
        network = Network(machine)
        choice = network.selector.choose(asked, tuple(range(32)), "rail_tree", "simple")
        placed = network.run(choice.build(asked), tuple(range(32)), (0,) * 32, choice.protocol)
        times.append(placed.template.duration_ps)
    assert times[0] == times[1]
