"""``kernbench machine``: which machines there are, every number of one, and the keys of a file."""

from __future__ import annotations

import json
import sys

import yaml

from kernbench.errors import KernbenchError
from kernbench.hardware import (
    fitted_constants,
    known_machines,
    leaves,
    load_machine,
    machine_schema,
    source_of,
)
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
    fitted = fitted_constants(machine.spec)
    if fitted:
        print(f"#   {len(fitted)} numbers were fitted to measurements; sources says to which")
    described = machine.spec.model_dump(mode="json", exclude_defaults=True)
    print(yaml.safe_dump(described, sort_keys=False, default_flow_style=None, width=100), end="")
    return 0


def check_machine(name: str) -> int:
    """Say whether a file describes a machine, at each of its sizes, and return the exit status."""
    try:
        spec = load_machine(name).spec
        machine = load_machine(name)
        for size in spec.sizes:
            load_machine(name, size)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    described = dict(leaves(spec.model_dump(mode="json", exclude_defaults=True)))
    unsourced = [
        key
        for key, value in described.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and source_of(spec, key) is None
    ]
    sizes = ", ".join(map(str, spec.sizes))
    print(f"{spec.name}: good at {sizes} SIPs; {len(machine.links)} links at the largest")
    if unsourced:
        print(f"{len(unsourced)} numbers have no entry in sources: {', '.join(unsourced)}")
    return 0


def diff_machines(first: str, second: str) -> int:
    """Print the keys in which two machines differ, and return the exit status."""
    try:
        before, after = (
            dict(leaves(load_machine(name).spec.model_dump(mode="json", exclude={"sources"})))
            for name in (first, second)
        )
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    changed = [
        (key, before.get(key, "-"), after.get(key, "-"))
        for key in dict.fromkeys([*before, *after])
        if before.get(key, "-") != after.get(key, "-")
    ]
    width = max((len(key) for key, _, _ in changed), default=0)
    for key, old, new in changed:
        ratio = ""
        if all(isinstance(each, int | float) for each in (old, new)) and old:
            ratio = f"  x {new / old:.3g}"
        print(f"{key:<{width}}  {old} -> {new}{ratio}")
    if not changed:
        print(f"{first} and {second} do not differ but in their sources")
    return 0


def print_schema() -> int:
    """Print the JSON schema of machine files and return the exit status."""
    print(json.dumps(machine_schema(), indent=2, ensure_ascii=False))
    return 0
