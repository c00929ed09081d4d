"""Sizes behind a machine's name: SIPs, the shape of a mesh, or nodes times SIPs (ADR-0034)."""

from __future__ import annotations

import json

import pytest

from kernbench.errors import KernbenchError, MachineError, UsageError
from kernbench.hardware import (
    changed_machine,
    load_machine,
    machine_data,
    machine_of_data,
    nodes_of,
    set_keys,
)


@pytest.mark.adr("0034-D4")
@pytest.mark.parametrize(
    ("spec", "num_sips", "num_hosts", "sips_per_node"),
    [
        ("h100-sxm:128x8", 1024, 128, 8),
        ("h100-sxm:16", 16, 1, 8),
        ("h100-sxm:4x2", 8, 4, 2),
        ("gb200:18x4", 72, 18, 72),
        ("gb200:36x4", 144, 36, 72),
        ("ahbm-mesh:4x8", 32, 1, 32),
    ],
)
def test_two_numbers_are_nodes_and_the_sips_of_each(
    spec: str, num_sips: int, num_hosts: int, sips_per_node: int
) -> None:
    machine = load_machine(spec)
    assert (machine.num_sips, machine.num_hosts) == (num_sips, num_hosts)
    assert machine.sips_per_node == sips_per_node
    assert machine.sips_per_host * num_hosts == num_sips


@pytest.mark.adr("0034-D4")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("l40s:2x8", "2x8 asks for nodes, but l40s has none: .* no links.scale_out"),
        ("t4:2x1", "t4 has none: its links.topology is missing"),
        ("h100-sxm:2x16", "nodes of 16 SIPs, but nodes of h100-sxm have 8"),
        ("gb200:18x2", "nodes of 2 SIPs, but hosts of gb200 have 4"),
        ("gb200:25x4", "72, which does not split 100 SIPs into whole nodes; take 72 or 144"),
    ],
)
def test_nodes_that_cannot_be_are_refused_with_both_numbers(spec: str, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        load_machine(spec)


def test_hosts_that_do_not_divide_a_node_are_refused() -> None:
    with pytest.raises(MachineError, match="sips_per_node is 72, which sips_per_host, 5"):
        changed_machine(load_machine("gb200:72"), {"links.scale_out.sips_per_host": 5})


@pytest.mark.parametrize(
    ("spec", "num_nodes", "found"),
    [
        ("h100-sxm", 4, "h100-sxm:4x8"),
        ("h100-sxm:16", 4, "h100-sxm:4x4"),
        ("h100-sxm:16x8", 4, "h100-sxm:16x8"),
    ],
)
def test_a_name_gets_the_size_of_the_nodes(spec: str, num_nodes: int, found: str) -> None:
    assert nodes_of(spec, num_nodes, "--nnodes") == found


@pytest.mark.parametrize(
    ("spec", "num_nodes", "message"),
    [
        ("h100-sxm:16", 3, "the 16 SIPs of h100-sxm:16 are not 3 nodes of up to 8"),
        ("h100-sxm:32", 2, "the 32 SIPs of h100-sxm:32 are not 2 nodes of up to 8"),
        ("h100-sxm:2x8", 4, "h100-sxm:2x8 has 2 nodes; take h100-sxm:4x8"),
        ("l40s", 2, "l40s has none"),
    ],
)
def test_a_size_that_is_not_so_many_nodes_is_refused(
    spec: str, num_nodes: int, message: str
) -> None:
    with pytest.raises(KernbenchError, match=message):
        nodes_of(spec, num_nodes, f"--nnodes {num_nodes}")


def test_a_size_with_three_numbers_is_no_number_of_nodes() -> None:
    with pytest.raises((MachineError, UsageError)):
        nodes_of("h100-sxm:2x2x2", 2, "--nnodes 2")


def test_hosts_are_kept_by_what_makes_a_machine_of_another() -> None:
    machine = load_machine("h100-sxm:2x8")
    assert set_keys(machine, ["links.scale_out.bandwidth_gbps=2x"])[0].num_hosts == 2
    assert changed_machine(machine, {}, num_sips=8).num_hosts == 1
    assert machine_of_data(json.loads(json.dumps(machine_data(machine))), "it").num_hosts == 2
    old = {key: value for key, value in machine_data(machine).items() if key != "num_hosts"}
    assert machine_of_data(old, "it").num_hosts == 1
