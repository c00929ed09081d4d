from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.hardware import SWITCH, Machine, load_machine

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
    check_all_routes(load_machine(f"a100-sxm-80g:{num_sips}"))


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
