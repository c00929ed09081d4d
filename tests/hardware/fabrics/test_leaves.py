"""Leaf switches: who shares which link, and what is no network."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kernbench.errors import MachineError
from kernbench.hardware import Machine, changed_machine, load_machine

KEY = "links.scale_out.leaves"


def leafy(size: str, **leaves: object) -> Machine:
    """Return nodes of an H100 machine behind leaf switches, 50 GB/s a port."""
    return changed_machine(load_machine(f"h100-sxm:{size}"), {KEY: leaves})


def names(machine: Machine, src: int, dst: int) -> list[str]:
    return [machine.links[link].name for link in machine.route(src, dst)]


@pytest.mark.adr("0034-D7")
def test_a_route_takes_the_spine_only_to_another_leaf() -> None:
    machine = leafy("8x2", nodes=4, oversubscription=2)
    assert names(machine, 0, 1) == ["sip0->switch0", "switch0->sip1"]
    assert names(machine, 0, 7) == ["sip0->leaf0", "leaf0->sip7"]
    assert names(machine, 0, 9) == [
        "sip0->leaf0",
        "leaf0->network",
        "network->leaf1",
        "leaf1->sip9",
    ]
    spine = machine.links[machine.first_leaf_link :]
    # Four nodes of two ports of 50 GB/s, of which half leaves the switch.
    assert {(link.name, int(link.bandwidth_gbps)) for link in spine} == {
        (name, 200)
        for name in ("leaf0->network", "leaf1->network", "network->leaf0", "network->leaf1")
    }


@pytest.mark.adr("0034-D7")
def test_on_rails_a_switch_has_the_ports_of_one_place() -> None:
    machine = leafy("8x2", nodes=4, ports="rail", oversubscription=4)
    assert names(machine, 0, 6) == ["sip0->leaf0", "leaf0->sip6"]
    assert names(machine, 0, 7) == [
        "sip0->leaf0",
        "leaf0->network",
        "network->leaf1",
        "leaf1->sip7",
    ]
    assert {link.bandwidth_gbps for link in machine.links[machine.first_leaf_link :]} == {50}


@pytest.mark.adr("0034-D7")
def test_static_routes_take_the_link_of_the_port_they_lead_to() -> None:
    machine = leafy("8x2", nodes=4, routing="static", uplinks=4)
    spine = machine.links[machine.first_leaf_link :]
    assert len(spine) == 2 * 2 * 4
    assert {link.bandwidth_gbps for link in spine} == {100}
    ups = {dst: machine.route(0, dst)[1] for dst in range(8, 16)}
    assert ups[8] == ups[12]
    assert len(set(ups.values())) == 4
    assert ups == {dst: machine.route(7, dst)[1] for dst in range(8, 16)}


@pytest.mark.adr("0034-D7")
def test_a_dragonfly_has_a_link_between_any_two_groups() -> None:
    machine = leafy("6x2", nodes=2, topology="dragonfly", latency_ns=700)
    assert names(machine, 0, 11) == ["sip0->leaf0", "leaf0->leaf2", "leaf2->sip11"]
    between = machine.links[machine.first_leaf_link :]
    assert len(between) == 3 * 2
    assert {(int(link.bandwidth_gbps), link.latency_ps) for link in between} == {(100, 700_000)}


@pytest.mark.adr("0034-D7")
@pytest.mark.parametrize(
    "leaves",
    [
        {"nodes": 2, "oversubscription": 3},
        {"nodes": 2, "ports": "rail"},
        {"nodes": 3, "routing": "static", "uplinks": 3},
        {"nodes": 2, "topology": "dragonfly"},
        {"nodes": 16},
    ],
)
def test_routes_of_many_are_those_of_each(leaves: dict[str, object]) -> None:
    machine = leafy("5x2", **leaves)
    pairs = np.array(list(product(range(10), repeat=2)))
    hops = np.array(list(machine.hops(pairs[:, 0], pairs[:, 1])))
    for number, (src, dst) in enumerate(pairs.tolist()):
        links = [link for link in hops[:, number].tolist() if link >= 0]
        assert links == list(machine.route(src, dst))
        at = src
        for link in links:
            ends = machine.links[link]
            assert ends.src_sip == at
            at = ends.dst_sip
        assert at == dst


@pytest.mark.adr("0034-D9")
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"nodes": 4, "oversubscription": 0.5}, "greater than or equal to 1"),
        ({"nodes": 4, "oversubscription": 0}, "greater than or equal to 1"),
        ({"nodes": 0}, "greater than or equal to 1"),
        ({"nodes": 4, "uplinks": 4}, "uplinks is 4, but routing adaptive uses all links as one"),
        ({"nodes": 4, "routing": "static", "uplinks": 40}, "uplinks is 40, but a switch has 32"),
        (
            {"nodes": 4, "ports": "rail", "routing": "static", "uplinks": 5},
            "uplinks is 5, but a switch has 4 interfaces",
        ),
        (
            {"nodes": 4, "topology": "dragonfly", "routing": "static"},
            "a dragonfly has one link between two switches",
        ),
    ],
)
def test_networks_that_do_not_connect_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        leafy("8x8", **keys)
    rails = {"links.scale_out.topology": "ring", KEY: {"nodes": 4}}
    with pytest.raises(MachineError, match="topology ring has rails"):
        changed_machine(load_machine("h100-sxm:8x8"), rails)
