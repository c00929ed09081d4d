"""Sizes behind a machine's name: ``:64`` SIPs, ``:4x8`` of a mesh, ``:8x8`` nodes times SIPs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from kernbench.errors import MachineError, UsageError
from kernbench.hardware.joining import Shape
from kernbench.hardware.link_specs import GRID_DIMS
from kernbench.hardware.specs import MachineSpec

_SIZE = re.compile(r"[0-9]+(?:x[0-9]+){0,2}")
_MOST_SIPS = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """How many SIPs of a machine were asked for, and how they are divided."""

    num_sips: int
    shape: Shape | None = None
    """Shape of a mesh or torus."""
    num_hosts: int = 1
    """Operating systems that the SIPs are divided among."""


def split_size(spec: str) -> tuple[str, Shape | None]:
    """Split ``name:64``, ``name:4x8`` or ``name:2x4x4`` into the name and its numbers.

    Raises:
        UsageError: What is behind the colon is no size.
    """
    name, colon, size = spec.rpartition(":")
    if not colon:
        return spec, None
    if _SIZE.fullmatch(size) is None:
        raise UsageError(
            f"machine {spec!r}: the size must be like 64, 4x8 or 2x4x4, but got {size!r}"
        )
    numbers = tuple(map(int, size.split("x")))
    if min(numbers) < 1:
        raise UsageError(f"machine {spec!r}: the size must be at least 1, but got {size!r}")
    if prod(numbers) > _MOST_SIPS:
        raise UsageError(f"machine {spec!r}: more than {_MOST_SIPS:,} SIPs are not simulated")
    return name, numbers


def file_of(spec: str) -> str:
    """Return the path of the file that ``spec`` names, if it names one.

    >>> file_of("mine.yaml:4x8")
    'mine.yaml'
    """
    name, colon, size = spec.rpartition(":")
    return name if colon and _SIZE.fullmatch(size) else spec


def sized(spec: MachineSpec, numbers: Shape, origin: str) -> tuple[MachineSpec, Size]:
    """Return what numbers behind a machine's name ask for, and the machine with nodes of that size.

    Two numbers are nodes and the SIPs of each, on a mesh or torus SIPs along its axes.

    Raises:
        MachineError: The machine has no nodes, or none of that size.
    """
    if len(numbers) == 1:
        return spec, Size(numbers[0])
    if len(numbers) != 2 or (spec.links is not None and spec.links.topology in GRID_DIMS):
        return spec, Size(prod(numbers), numbers)
    num_nodes, per_node = numbers
    return of_hosts(spec, per_node, f"{origin}: {num_nodes}x{per_node}"), Size(
        num_nodes * per_node, None, num_nodes
    )


def host_size(spec: MachineSpec, asked: str) -> int:
    """Return how many SIPs one host of a machine has.

    Raises:
        MachineError: Its file says nothing of nodes; the text begins with ``asked``.
    """
    outer = None if spec.links is None else spec.links.scale_out
    if outer is None:
        topology = "missing" if spec.links is None else spec.links.topology
        raise MachineError(
            f"{asked} asks for nodes, but {spec.name} has none: its links.topology is {topology}, "
            "and it has no links.scale_out, which joins nodes; leave the nodes out, or add that"
        )
    return outer.host_size


def of_hosts(spec: MachineSpec, per_host: int, asked: str) -> MachineSpec:
    """Return a machine whose hosts have so many SIPs; they may have fewer than its file says.

    Raises:
        MachineError: They cannot; the text begins with ``asked``.
    """
    most = host_size(spec, asked)
    if per_host == most:
        return spec
    assert spec.links is not None
    assert spec.links.scale_out is not None
    outer = spec.links.scale_out
    if per_host > most:
        raise MachineError(
            f"{asked} asks for nodes of {per_host} SIPs, but nodes of {spec.name} have {most}"
        )
    if outer.sips_per_node != most:
        raise MachineError(
            f"{asked} asks for nodes of {per_host} SIPs, but hosts of {spec.name} have {most}, "
            f"and its links join {outer.sips_per_node} SIPs of several hosts; take {most} each"
        )
    nics = outer.nics_per_node
    if nics is not None:
        if nics * per_host % most:
            raise MachineError(
                f"{asked} asks for nodes of {per_host} SIPs, but the {nics} network interfaces of "
                f"{most} SIPs of {spec.name} cannot be divided like that"
            )
        nics = nics * per_host // most
    smaller = outer.model_copy(
        update={"sips_per_node": per_host, "sips_per_host": None, "nics_per_node": nics}
    )
    return spec.model_copy(update={"links": spec.links.model_copy(update={"scale_out": smaller})})
