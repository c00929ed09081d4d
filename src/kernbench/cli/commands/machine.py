"""``kernbench machine``: which machines there are, every number of one, and the keys of a file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kernbench.errors import KernbenchError

PLACE = 60
app = typer.Typer(
    name="machine", help="Show the machines that ship with kernbench.", no_args_is_help=True
)


@app.command("list")
def _list_machines() -> None:
    """List the machines, the numbers of SIPs that they come in, and what they are."""
    raise typer.Exit(list_machines())


@app.command("show")
def _show_machine(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="As --machine takes it.")],
) -> None:
    """Show a machine: its peak rates, then every number of its description."""
    raise typer.Exit(show_machine(name))


@app.command("check")
def _check_machine(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="As --machine takes it.")],
) -> None:
    """Check a machine file at all of its sizes; name numbers that have no source."""
    raise typer.Exit(check_machine(name))


@app.command("diff")
def _diff_machines(
    first: Annotated[str, typer.Argument(metavar="A", help="As --machine takes it.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The machine to compare with it.")],
) -> None:
    """Show the keys in which two machines differ."""
    raise typer.Exit(diff_machines(first, second))


@app.command("schema")
def _print_schema() -> None:
    """Print the JSON schema of machine files, by which editors complete and check them."""
    raise typer.Exit(print_schema())


def list_machines() -> int:
    """Print the machines that ship with kernbench and return the exit status."""
    from kernbench.hardware import known_machines, load_machine

    specs = [load_machine(name, 1).spec for name in known_machines()]
    width = max(len(spec.name) for spec in specs)
    for spec in specs:
        print(f"{spec.name:<{width}}  {_sips(*spec.sizes)}  {spec.description}".rstrip())
    return 0


def _sips(*counts: int) -> str:
    """Return numbers of SIPs in words.

    >>> _sips(1), _sips(1, 2)
    ('1 SIP', '1, 2 SIPs')
    """
    return f"{', '.join(map(str, counts))} {'SIP' if counts == (1,) else 'SIPs'}"


def show_machine(name: str) -> int:
    """Print one machine and return the exit status."""
    import yaml

    from kernbench.hardware import fitted_constants, load_machine
    from kernbench.report import format_amount, peaks_of

    try:
        machine = load_machine(name)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    peaks = peaks_of(machine)
    print(f"# {machine.name}: {_sips(machine.num_sips)}, {len(machine.links)} links; each SIP:")
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
    from kernbench.hardware import leaves, load_machine, source_of

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
    print(f"{spec.name}: good at {_sips(*spec.sizes)}; {len(machine.links)} links at the largest")
    if unsourced:
        print(f"{len(unsourced)} numbers have no entry in sources: {', '.join(unsourced)}")
    return 0


def diff_machines(first: str, second: str) -> int:
    """Print the keys in which two machines differ, and return the exit status."""
    from kernbench.hardware import leaves, load_machine

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
    import json

    from kernbench.hardware import machine_schema

    print(json.dumps(machine_schema(), indent=2, ensure_ascii=False))
    return 0
