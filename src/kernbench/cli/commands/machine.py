"""``kernbench machine``: which machines there are, every number of one, and files of one's own."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from kernbench.cli.registry import Listing
from kernbench.errors import UsageError

PLACE = 60
_MOST_OF_SOURCE = 72
"""Characters of a source that ``show`` prints; the file has all."""
app = typer.Typer(
    name="machine",
    help="Show machines, and write files for those of your own.",
    no_args_is_help=True,
    cls=Listing,
)


@app.command("list")
def _list_machines() -> None:
    """List the machines, the numbers of SIPs that they come in, and what they are.

    kernbench machine list
    """
    from kernbench.hardware import known_machines, load_machine

    specs = [load_machine(name, 1).spec for name in known_machines()]
    width = max(len(spec.name) for spec in specs)
    for spec in specs:
        print(f"{spec.name:<{width}}  {_sips(*spec.sizes)}  {spec.description}".rstrip())


@app.command("show")
def _show_machine(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE", help="As --machine takes it.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="A run of --save: how much it used of each part."),
    ] = None,
) -> None:
    """Show a machine: a picture of its parts and links, then every number of its description.

    kernbench machine show h100-sxm:2x8

    kernbench machine show --run mlp.run
    """
    import yaml

    from kernbench.cli.machine_picture import load_of, machine_picture
    from kernbench.hardware import fitted_constants, load_machine
    from kernbench.report import format_amount, peaks_of
    from kernbench.saved import load_run

    load = None
    if run is not None:
        saved = load_run(run)
        machine, load = saved.machine, load_of(saved)
    elif name is None:
        raise UsageError("name a machine, or a run with --run")
    if name is not None:
        machine = load_machine(name)
    peaks = peaks_of(machine)
    print(f"# {machine.name}: {_sips(machine.num_sips)}, {len(machine.links)} links; each SIP:")
    print(f"#   {format_amount(peaks.flops_per_ns * 1e9, 'FLOP/s')} at most in GEMM")
    print(f"#   {format_amount(peaks.hbm_bytes_per_ns * 1e9, 'B/s')} HBM")
    print(f"#   {machine.sip.hbm_bytes / 2**30:.0f} GiB HBM, {machine.sip.num_pes} PEs")
    for line in machine_picture(machine, load):
        print(f"#{line}")
    if name is None:
        return
    fitted = fitted_constants(machine.spec)
    if fitted:
        print(f"#   {len(fitted)} numbers were fitted to measurements; sources says to which")
    described = machine.spec.model_dump(mode="json", exclude_defaults=True)
    described["sources"] = {
        key: shorten(said, _MOST_OF_SOURCE, placeholder=" [...]")
        for key, said in machine.spec.sources.items()
    }
    print(yaml.safe_dump(described, sort_keys=False, default_flow_style=None, width=100), end="")


@app.command("new")
def _new_machine(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the machine is called.")],
    like: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="The machine whose numbers it begins with.")
    ] = "ahbm",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="NAME.yaml, if not given.")
    ] = None,
) -> None:
    """Write a machine file with every key, its meaning, unit, bounds and default as comments.

    kernbench machine new mychip --like h100-sxm
    """
    from kernbench.hardware import known_machines, machine_template
    from kernbench.outputs import write_text

    path = Path(output or f"{name}.yaml")
    if not name or name != Path(name).name:
        raise UsageError(f"a machine cannot be called {name!r}; --output FILE says where it goes")
    if name in known_machines():
        raise UsageError(f"{name} ships with kernbench; take another name")
    if path.exists():
        raise UsageError(f"{path} is there already; remove it, or give another with --output")
    write_text(path, machine_template(name, like))
    print(
        f"wrote {path}: the numbers of {like}, assumed for {name}; change them with an editor or\n"
        f"  kernbench machine set {path} KEY=VALUE\n"
        f"  kernbench machine check {path}\n"
        f"  kernbench calibrate {path} ROWS.csv   (rows of device {name})"
    )


@app.command("set")
def _set_keys(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A machine file.")],
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="As --set takes them.")
    ],
    source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Where the values come from, for sources.")
    ] = None,
) -> None:
    """Change keys in a machine file; comments, order and layout stay.

    kernbench machine set mychip.yaml sip.clock_ghz=1.2x sip.power.cap_w=500 --source "data sheet"
    """
    from kernbench.hardware import (
        edited,
        known_machines,
        leaves,
        load_machine,
        machine_text,
        parse_machine,
        set_keys,
        source_of,
    )
    from kernbench.inputs import parse_yaml
    from kernbench.outputs import write_text

    if file in known_machines():
        raise UsageError(
            f"{file} ships with kernbench; kernbench machine new NAME --like {file} writes a file "
            "that can be changed"
        )
    text, origin = machine_text(file)
    machine = load_machine(file)
    known = dict(leaves(machine.spec.model_dump()))
    values: dict[str, Any] = {}
    # What the file leaves out may be added with its group, or to a mapping: it is checked below.
    new = [setting for setting in settings if setting.partition("=")[0].strip() not in known]
    for pair in new:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or "->" in key:
            raise UsageError(f"must be KEY=VALUE with a key of the file, but got {pair!r}")
        values[key] = parse_yaml(value, key)
    _, changes = set_keys(machine, [setting for setting in settings if setting not in new])
    values |= {change.key: change.value for change in changes}
    sources = {key: source for key in values if source is not None}
    text = edited(text, values, sources, origin)
    parse_machine(text, origin)
    write_text(file, text)
    for key, value in values.items():
        said = source_of(machine.spec, key)
        stale = said is not None and source is None and not said.startswith("assumed")
        was = f"was {known[key]}" if key in known else "new"
        print(f"{key} = {value} ({was})" + (f"; sources still says: {said}" if stale else ""))


@app.command("check")
def _check_machine(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="As --machine takes it.")],
) -> None:
    """Check a machine file at all of its sizes; name numbers that have no source.

    kernbench machine check mychip.yaml
    """
    from kernbench.hardware import leaves, load_machine, source_of

    machine = load_machine(name)
    spec = machine.spec
    for size in spec.sizes:
        load_machine(name, size)
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


@app.command("diff")
def _diff_machines(
    first: Annotated[str, typer.Argument(metavar="A", help="As --machine takes it.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The machine to compare with it.")],
) -> None:
    """Show the keys in which two machines differ.

    kernbench machine diff h100-sxm h200
    """
    from kernbench.hardware import leaves, load_machine

    before, after = (
        dict(leaves(load_machine(name).spec.model_dump(mode="json", exclude={"sources"})))
        for name in (first, second)
    )
    changed = [
        (key, before.get(key, "-"), after.get(key, "-"))
        for key in dict.fromkeys([*before, *after])
        if before.get(key, "-") != after.get(key, "-")
    ]
    width = max((len(key) for key, _, _ in changed), default=0)
    for key, old, new in changed:
        ratio = ""
        if all(isinstance(item, int | float) for item in (old, new)) and old:
            ratio = f"  x {new / old:.3g}"
        print(f"{key:<{width}}  {old} -> {new}{ratio}")
    if not changed:
        print(f"{first} and {second} do not differ but in their sources")


@app.command("schema")
def _print_schema() -> None:
    """Print the JSON schema of machine files, by which editors complete and check them.

    kernbench machine schema > machine.schema.json
    """
    import json

    from kernbench.hardware import machine_schema

    print(json.dumps(machine_schema(), indent=2, ensure_ascii=False))


def _sips(*counts: int) -> str:
    """Return numbers of SIPs in words.

    >>> _sips(1), _sips(1, 2)
    ('1 SIP', '1, 2 SIPs')
    """
    return f"{', '.join(map(str, counts))} {'SIP' if counts == (1,) else 'SIPs'}"
