"""Exchanges of published runs: groups on nodes, and on the torus of a slice."""

from __future__ import annotations

import pytest

from kernbench.hardware import load_machine
from validation.predictors.clusters.wires import ClusterWires, TorusWires

MIB = 1 << 20
NODES = ClusterWires(load_machine("h100-sxm"))


@pytest.mark.adr("0190-D1")
def test_a_group_with_one_rank_in_a_node_has_one_interface_to_itself() -> None:
    one_each = NODES.time("all_gather", 16, 8, 256 * MIB)
    # 15 of 16 parts arrive over 50 GB/s.
    assert one_each == pytest.approx(256 * MIB * 15 / 16 / 49e3, rel=0.1)
    # A group of whole nodes leaves each by all of its interfaces.
    assert NODES.time("all_gather", 16, 1, 256 * MIB) < one_each / 4
    assert NODES.time("all_gather", 1, 1, MIB) == 0


def test_experts_rows_cross_the_network_once_per_node() -> None:
    in_a_node = NODES.experts(8, 8, 8 * MIB, 1.0)
    between = NODES.experts(64, 8, 8 * MIB, 1.0)
    met = 8 * (1 - (7 / 8) ** 8) * 7 / 8
    assert between == pytest.approx(8 * MIB * met / 45e3 + 30, rel=0.01)
    assert in_a_node < between
    assert NODES.experts(1, 8, MIB, 1.0) == 0


def test_a_torus_gathers_over_all_axes_and_sums_over_slices() -> None:
    slices = TorusWires(load_machine("tpu-v5e-like"))
    assert slices.time("all_gather", 256, 1, 256 * MIB) == pytest.approx(
        256 * MIB * 255 / 256 / 180e3 + 16, rel=0.01
    )
    # Two slices: each sends half of its sum, and gets half, over the data center's network.
    between = slices.time("all_reduce", 2, 256, 256 * MIB)
    assert between == pytest.approx(2 * 128 * MIB / 3.125e3, rel=0.01)
    assert slices.send(1, MIB) == pytest.approx(MIB / 45e3 + 1, rel=0.01)
