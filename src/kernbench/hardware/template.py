"""A machine file to fill in: every key with its meaning, unit, bounds and default (ADR-0261)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from kernbench.errors import MachineError
from kernbench.hardware.editing import yaml_text
from kernbench.hardware.loading import load_machine, parse_machine
from kernbench.hardware.schema import (
    bounds_text,
    choices_of,
    default_text,
    group_of,
    machine_schema,
    unit_of,
)

_WIDTH = 96
_NOT_OF_A_COPY = frozenset({"base", "clusters", "sources"})


def machine_template(name: str, like: str) -> str:
    """Return the text of a machine file with every key, its numbers those of ``like``.

    A key that ``like`` leaves out stands there as ``#key: DEFAULT``. Each number has the source
    ``assumed``, so that :func:`calibrate` may change it; ``devices`` is the machine's name.

    Raises:
        UnknownNameError: There is no machine ``like``.
        MachineError: ``name`` is no name of a machine.
    """
    spec = load_machine(like).spec
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_defaults=True)
    said = {"name": name, "description": f"begun as {spec.name}", "devices": [name]}
    data = {key: value for key, value in (data | said).items() if key not in _NOT_OF_A_COPY}
    data["sources"] = {
        key: f"assumed: as {spec.name}"
        for key, value in data.items()
        if not isinstance(value, str) and key != "devices"
    }
    schema = machine_schema()
    lines = [
        f"# {name}, a machine file for --machine FILE; its numbers are those of {spec.name}.",
        "# A line #key: value is a key that is not given, with its default.",
        *_lines(schema["$defs"], "MachineSpec", data),
    ]
    text = "\n".join(lines) + "\n"
    try:
        parse_machine(text, name)
    except MachineError:
        raise MachineError(f"{name!r} is no name of a machine; take letters and digits") from None
    return text


def _lines(
    groups: Mapping[str, Any], name: str, data: Mapping[str, Any], indent: str = "", mark: str = ""
) -> Iterator[str]:
    """Yield the lines of a group; ``mark`` is ``#`` within a group that is not given."""
    required = groups[name].get("required", ())
    for key, value in groups[name]["properties"].items():
        has = key in data
        inner = group_of(value)
        default = "required" if key in required else f"default {default_text(value.get('default'))}"
        if inner is not None and key not in required:
            default = "may be left out"
        parts = (unit_of(key), bounds_text(value), default)
        about = f"{value['description']} [{'; '.join(filter(None, parts))}]"
        prefix = f"{indent}# "
        yield from textwrap.wrap(
            about.replace("`", ""), _WIDTH, initial_indent=prefix, subsequent_indent=prefix
        )
        sign = mark or ("" if has else "#")
        if inner is not None and any("$ref" in choice for choice in choices_of(value)):
            argument = data.get(key, {})
            end = " {}" if has and not argument else ""
            yield f"{sign}{indent}{key}:{end}"
            # Below a key that is given and empty nothing may stand.
            yield from _lines(groups, inner, argument, f"{indent}  ", "#" if end else sign)
        else:
            yield from _entry(key, data.get(key, value.get("default")), indent, sign)


def _entry(key: str, value: Any, indent: str, sign: str) -> Iterator[str]:
    """Yield the line of a key, or those of a mapping's entries."""
    if not isinstance(value, dict) or not value or sign:
        yield f"{sign}{indent}{key}:{'' if value is None else f' {yaml_text(value)}'}"
        return
    yield f"{indent}{key}:"
    for name, item in value.items():
        yield f"{indent}  {yaml_text(name)}: {yaml_text(item)}"
