"""``kernbench machine``: which machines there are, and every number of one."""

from __future__ import annotations

import sys

import yaml

from kernbench.errors import KernbenchError
from kernbench.hardware import known_machines, load_machine
from kernbench.report import format_amount, peaks_of


def list_machines() -> int:
    """Print the machines that ship with kernbench and return the exit status."""
    specs = [load_machine(name, 1).spec for name in known_machines()]
    width = max(len(spec.name) for spec in specs)
    for spec in specs:
        sizes = ", ".join(map(str, spec.sizes))
        print(f"{spec.name:<{width}}  {sizes} SIPs  {spec.description}".rstrip())
    return 0


def show_machine(name: str) -> int:
    """Print one machine and return the exit status."""
    try:
        machine = load_machine(name)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    peaks = peaks_of(machine)
    print(f"# {machine.name}: {machine.num_sips} SIPs, {len(machine.links)} links; each SIP:")
    print(f"#   {format_amount(peaks.flops_per_ns * 1e9, 'FLOP/s')} at most in GEMM")
    print(f"#   {format_amount(peaks.hbm_bytes_per_ns * 1e9, 'B/s')} HBM")
    print(f"#   {machine.sip.hbm_bytes / 2**30:.0f} GiB HBM, {machine.sip.num_pes} PEs")
    described = machine.spec.model_dump(mode="json", exclude_defaults=True)
    print(yaml.safe_dump(described, sort_keys=False, default_flow_style=None, width=100), end="")
    return 0
