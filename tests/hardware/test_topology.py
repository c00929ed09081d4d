import json
from collections import deque
from itertools import pairwise
from math import prod

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import MachineError, UsageError
from kernbench.hardware import SWITCH, Machine, load_machine, parse_machine
from tests.tiers import daily

SIZES = st.integers(1, 24)


def fewest_hops(machine: Machine, src: int) -> dict[int, int]:
    """Breadth-first search over the links, the switch being a place like any other."""
    away = {src: 0}
    queue = deque([src])
    while queue:
        here = queue.popleft()
        for link in machine.links:
            if link.src_sip == here and link.dst_sip not in away:
                away[link.dst_sip] = away[here] + 1
                queue.append(link.dst_sip)
    return away


def check_all_routes(machine: Machine) -> None:
    for src in range(machine.num_sips):
        hops = fewest_hops(machine, src)
        for dst in range(machine.num_sips):
            route = [machine.links[index] for index in machine.route(src, dst)]
            assert len(route) == hops[dst]
            if src != dst:
                assert (route[0].src_sip, route[-1].dst_sip) == (src, dst)
            assert all(one.dst_sip == two.src_sip for one, two in pairwise(route))
    check_many_at_once(machine)


def check_many_at_once(machine: Machine) -> None:
    """Hold the routes of all pairs, hop by hop, to those of one pair after the other."""
    pairs = np.indices((machine.num_sips, machine.num_sips)).reshape(2, -1)
    hops = list(machine.hops(*pairs))
    for pair, (src, dst) in enumerate(pairs.T.tolist()):
        route = list(machine.route(src, dst))
        assert [int(hop[pair]) for hop in hops] == route + [-1] * (len(hops) - len(route))


@pytest.mark.adr("0006-D4")
@given(num_sips=SIZES)
def test_ring_routes_are_shortest(num_sips: int) -> None:
    check_all_routes(load_machine(f"ahbm:{num_sips}"))


@pytest.mark.adr("0006-D4")
@given(rows=st.integers(1, 5), cols=st.integers(1, 5))
def test_mesh_routes_are_shortest(rows: int, cols: int) -> None:
    machine = load_machine(f"ahbm-mesh:{rows}x{cols}")
    assert machine.num_sips == rows * cols
    check_all_routes(machine)


@pytest.mark.adr("0006-D4")
@given(num_sips=SIZES)
def test_switch_routes_are_shortest(num_sips: int) -> None:
    check_all_routes(load_machine(f"v100:{num_sips}"))


def joined(links: str, num_sips: int) -> Machine:
    """Return the preset ahbm with other links."""
    text = load_machine("ahbm").spec.model_dump_json()
    data = {**json.loads(text), "links": yaml.safe_load(links), "sizes": [num_sips], "sources": {}}
    return parse_machine(yaml.safe_dump(data), "test", num_sips)


WIRES = "bandwidth_gbps: 100, latency_ns: 500"


@pytest.mark.adr("0034-D1")
@pytest.mark.parametrize("kind", ["mesh", "torus"])
@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=3))
def test_routes_on_grids_of_any_shape_are_shortest(kind: str, shape: list[int]) -> None:
    links = f"{{topology: {kind}{len(shape)}d, {WIRES}, shape: {shape}}}"
    check_all_routes(joined(links, prod(shape)))


@given(num_sips=SIZES)
def test_one_way_ring_routes_are_shortest(num_sips: int) -> None:
    check_all_routes(joined(f"{{topology: one_way_ring, {WIRES}}}", num_sips))


@pytest.mark.adr("0034-D1")
@given(data=st.data(), num_sips=st.integers(2, 12))
def test_graph_routes_are_shortest(data: st.DataObject, num_sips: int) -> None:
    edges = {(data.draw(st.integers(0, sip - 1)), sip) for sip in range(1, num_sips)}
    pairs = st.tuples(st.integers(0, num_sips - 1), st.integers(0, num_sips - 1))
    edges |= {item for item in data.draw(st.lists(pairs, max_size=6)) if item[0] < item[1]}
    listed = [list(edge) for edge in sorted(edges)]
    check_all_routes(joined(f"{{topology: graph, {WIRES}, edges: {listed}}}", num_sips))


@pytest.mark.adr("0034-D2")
@pytest.mark.parametrize("inner", ["switch", "ring", "torus2d", "fully_connected"])
@pytest.mark.parametrize("outer", ["switch", "ring", "fully_connected"])
@pytest.mark.parametrize("nodes", daily(5, of=(1, 2, 5)))
def test_routes_between_nodes_are_shortest(inner: str, outer: str, nodes: int) -> None:
    machine = joined(
        f"{{topology: {inner}, {WIRES}, scale_out: {{sips_per_node: 4, topology: {outer}, "
        "bandwidth_gbps: 12.5, latency_ns: 3000}}",
        4 * nodes,
    )
    assert machine.sips_per_node == 4
    check_all_routes(machine)
    rates = {
        link.bandwidth_gbps for index in machine.route(0, 1) for link in [machine.links[index]]
    }
    assert rates == {100}
    if nodes > 1:
        away = {machine.links[index].latency_ps for index in machine.route(0, 4)}
        assert away == {3_000_000}


@pytest.mark.adr("0034-D1")
@pytest.mark.parametrize(
    ("links", "num_sips", "message"),
    [
        ("topology: torus2d, shape: [2, 3]", 8, "links.shape is 2x3, which makes 6 SIPs, .* has 8"),
        ("topology: torus3d, shape: [2, 3]", 6, "shape of a torus3d must have 3 numbers"),
        ("topology: switch, shape: [2, 3]", 6, "topology switch has no shape"),
        ("topology: graph", 2, "edges is missing"),
        ("topology: ring, edges: [[0, 1]]", 2, "edges says nothing about a ring"),
        ("topology: graph, edges: [[0, 1], [2, 3]]", 4, "leave SIP 2, 3 unconnected to SIP 0"),
        (
            "topology: graph, edges: [[0, 1], [1, 0]]",
            2,
            r"links.edges.1 is \[1, 0\]: must join two",
        ),
        (
            "topology: ring, scale_out: {sips_per_node: 8, topology: ring, bandwidth_gbps: 1, "
            "latency_ns: 1}",
            12,
            "sips_per_node is 8, which does not split 12 SIPs into whole nodes; take 8 or 16",
        ),
    ],
)
def test_links_that_cannot_be_are_refused_with_the_key(
    links: str, num_sips: int, message: str
) -> None:
    with pytest.raises(MachineError, match=message):
        joined(f"{{{WIRES}, {links}}}", num_sips)


@pytest.mark.adr("0034-D2")
def test_links_name_their_node() -> None:
    machine = joined(
        f"{{topology: switch, {WIRES}, scale_out: {{sips_per_node: 2, topology: switch, "
        "bandwidth_gbps: 12.5, latency_ns: 3000}, "
        "overrides: [{src_sip: 3, dst_sip: -3, bandwidth_gbps: 1}]}",
        4,
    )
    names = {link.name: link.bandwidth_gbps for link in machine.links}
    assert names["sip2->switch1"] == 100
    assert names["sip2->network"] == 12.5
    assert names["sip3->network"] == 1


def test_ring_ties_go_clockwise() -> None:
    machine = load_machine("ahbm:4")
    assert [machine.links[i].dst_sip for i in machine.route(0, 2)] == [1, 2]
    assert [machine.links[i].dst_sip for i in machine.route(3, 1)] == [0, 1]
    assert [machine.links[i].dst_sip for i in machine.route(0, 3)] == [3]


def test_mesh_goes_along_x_first() -> None:
    machine = load_machine("ahbm-mesh:3x4")
    assert [machine.links[i].dst_sip for i in machine.route(1, 11)] == [2, 3, 7, 11]


def test_a_ring_of_two_has_one_link_in_each_direction() -> None:
    assert [(x.src_sip, x.dst_sip) for x in load_machine("ahbm:2").links] == [(0, 1), (1, 0)]


def test_switch_links_name_the_switch() -> None:
    machine = load_machine("a100-sxm-80g:2")
    assert [link.name for link in machine.links] == [
        "sip0->switch",
        "sip1->switch",
        "switch->sip0",
        "switch->sip1",
    ]
    assert machine.links[0].dst_sip == SWITCH


def test_thousands_of_sips_have_links_and_routes() -> None:
    machine = load_machine("ahbm:8192")
    assert len(machine.links) == 2 * 8192
    assert len(machine.route(0, 4096)) == 4096
    assert len(load_machine("ahbm-mesh:8192").route(0, 8191)) == 63 + 127


@pytest.mark.parametrize(("src", "dst", "named"), [(0, 4, 4), (-1, 0, -1), (9, 0, 9)])
def test_a_sip_that_is_not_there_is_refused(src: int, dst: int, named: int) -> None:
    with pytest.raises(UsageError, match=f"SIPs 0 to 3, but SIP {named}"):
        load_machine("ahbm:4").route(src, dst)
