"""How many devices PyTorch can number, and therefore how many ranks a program may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.hardware import Machine

MOST_DEVICES = 128
"""PyTorch stores a device index in 8 signed bits: ``cuda:128`` becomes ``cuda:-128``.

Source: c10/core/Device.h, ``using DeviceIndex = int8_t``.
"""


def check_ranks(nprocs: int, asked: str) -> None:
    """Refuse more ranks of one node than PyTorch can number devices.

    Raises:
        UsageError: There are more; its text begins with ``asked``.
    """
    if nprocs > MOST_DEVICES:
        raise UsageError(
            f"{asked} asks for {nprocs} ranks, but PyTorch numbers devices with 8 bits, so a "
            f"node may have at most {MOST_DEVICES} ranks, each with a device of its own; start "
            f"{MOST_DEVICES} or fewer, divide them among nodes (kernbench torchrun --nnodes), or "
            "write it as a bench for `kernbench run`, which has no such limit"
        )


def check_one_node(nprocs: int, machine: Machine, asked: str) -> None:
    """Refuse more processes of one host than it has devices: they would be on other hosts.

    Raises:
        UsageError: There are more; its text begins with ``asked``.
    """
    if machine.num_hosts > 1 and nprocs > machine.sips_per_host:
        raise UsageError(
            f"{asked} asks for {nprocs} processes on one node, but nodes of machine "
            f"{machine.name} have {machine.sips_per_host} devices; start ranks on several nodes "
            "with kernbench torchrun --nnodes N --nproc-per-node "
            f"{machine.sips_per_host}"
        )


def check_nodes(machine: Machine, nprocs: int, num_nodes: int) -> None:
    """Refuse ranks that do not fill the nodes of a machine.

    Raises:
        UsageError: They do not.
    """
    if num_nodes == 1:
        check_one_node(nprocs, machine, f"--nproc-per-node {nprocs}")
    elif num_nodes > machine.num_hosts:
        raise UsageError(
            f"--nnodes {num_nodes} asks for more nodes than the {machine.num_hosts} of machine "
            f"{machine.name}; take --machine {machine.name}:{num_nodes}x{nprocs}"
        )
    elif nprocs != machine.sips_per_host:
        smaller = f", or --machine {machine.name}:{num_nodes}x{nprocs} for smaller nodes"
        raise UsageError(
            f"{nprocs} ranks per node do not fill the nodes of machine {machine.name}, which have "
            f"{machine.sips_per_host} devices; take --nproc-per-node {machine.sips_per_host}"
            f"{smaller if nprocs < machine.sips_per_host else ''}"
        )
