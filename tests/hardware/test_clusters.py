"""Clusters: machine files with a base, and network interfaces that SIPs share (ADR-0034)."""

from __future__ import annotations

import pytest
import yaml

from kernbench.errors import MachineError
from kernbench.hardware import changed_machine, load_machine, parse_machine

P5 = {"name": "mine", "base": "h100-sxm", "links": {"scale_out": {"bandwidth_gbps": 10}}}


@pytest.mark.adr("0034-D5")
@pytest.mark.parametrize(
    ("nics", "ports", "gbps"), [(None, 8, 50), (8, 8, 50), (4, 4, 50), (32, 8, 200), (1, 1, 50)]
)
def test_interfaces_are_shared_by_sips_in_a_row_or_are_one_link_of_each(
    nics: int | None, ports: int, gbps: int
) -> None:
    machine = changed_machine(load_machine("h100-sxm:2x8"), {"links.scale_out.nics_per_node": nics})
    outer = machine.links[machine.num_inner_links :]
    assert len(outer) == 2 * 2 * ports
    assert {link.bandwidth_gbps for link in outer} == {gbps}
    shared = 8 // ports
    routes = {machine.route(sip, 8)[0] for sip in range(8)}
    assert len(routes) == ports
    assert machine.route(0, 8)[0] == machine.route(shared - 1, 8)[0]


@pytest.mark.adr("0034-D5")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nics_per_node": 3}, "nics_per_node is 3, which 8 SIPs of a node cannot share evenly"),
        ({"nics_per_node": 12}, "12, which 8 SIPs"),
        ({"nics_per_node": 4, "topology": "ring"}, "4, but topology ring has rails"),
    ],
)
def test_interfaces_that_cannot_be_shared_are_refused(
    changes: dict[str, object], message: str
) -> None:
    keys = {f"links.scale_out.{key}": value for key, value in changes.items()}
    with pytest.raises(MachineError, match=message):
        changed_machine(load_machine("h100-sxm:2x8"), keys)


def test_smaller_nodes_have_their_share_of_the_interfaces() -> None:
    spec = load_machine("p5:4x2").spec
    assert spec.links is not None
    assert spec.links.scale_out is not None
    assert spec.links.scale_out.nics_per_node == 8
    with pytest.raises(MachineError, match="the 4 network interfaces of 8 SIPs of p4de cannot be"):
        load_machine("p4de:4x1")


@pytest.mark.adr("0034-D6")
def test_a_file_with_a_base_says_what_differs() -> None:
    machine, base = parse_machine(yaml.safe_dump(P5), "mine.yaml", 8), load_machine("h100-sxm", 8)
    assert machine.spec.links is not None
    assert machine.spec.links.scale_out is not None
    assert machine.spec.links.scale_out.bandwidth_gbps == 10
    assert machine.spec.links.scale_out.sips_per_node == 8
    assert machine.spec.sip == base.spec.sip
    assert "sip.pe.warps" in machine.spec.sources
    assert "links.scale_out.latency_ns" in machine.spec.sources


@pytest.mark.adr("0034-D6")
def test_sources_of_what_a_file_changes_are_not_those_of_its_base() -> None:
    changed = {**P5, "links": {"scale_out": {"latency_ns": 1}}}
    sources = parse_machine(yaml.safe_dump(changed), "mine.yaml", 8).spec.sources
    assert "links.scale_out.latency_ns" not in sources
    assert "links.scale_out" in sources


@pytest.mark.adr("0034-D6")
@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("h100", "base must be a machine that ships with kernbench, but got 'h100'"),
        ("p5", "base is p5, which has a base itself; name h100-sxm"),
    ],
)
def test_a_base_that_is_none_is_refused(base: str, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        parse_machine(yaml.safe_dump({**P5, "base": base}), "mine.yaml", 8)
