"""The machine description: presets, files, their validation, and exact rates."""

from kernbench.hardware.loading import known_machines, load_machine, parse_machine
from kernbench.hardware.machine import Link, Machine, build_machine
from kernbench.hardware.rates import (
    PS_PER_NS,
    PS_PER_US,
    ceil_ps,
    cycles_ps,
    ps_per_byte,
    transfer_ps,
)
from kernbench.hardware.specs import (
    CacheSpec,
    CubeSpec,
    DieToDieSpec,
    GemmSpec,
    HostLinkSpec,
    LinksSpec,
    MachineSpec,
    MathSpec,
    PeSpec,
    SipSpec,
)
from kernbench.hardware.topology import SWITCH

__all__ = [
    "PS_PER_NS",
    "PS_PER_US",
    "SWITCH",
    "CacheSpec",
    "CubeSpec",
    "DieToDieSpec",
    "GemmSpec",
    "HostLinkSpec",
    "Link",
    "LinksSpec",
    "Machine",
    "MachineSpec",
    "MathSpec",
    "PeSpec",
    "SipSpec",
    "build_machine",
    "ceil_ps",
    "cycles_ps",
    "known_machines",
    "load_machine",
    "parse_machine",
    "ps_per_byte",
    "transfer_ps",
]
