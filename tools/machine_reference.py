"""Write the reference of machine files from the models that read them.

    python tools/machine_reference.py           print it
    python tools/machine_reference.py --write   put it into docs/machine-reference.md

Every key with its unit, its bounds, its default and the text under its field; the order is that
of the models.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from kernbench.hardware import machine_schema
from kernbench.hardware.spec_base import LEAST, MOST

PAGE = Path(__file__).resolve().parents[1] / "docs" / "machine-reference.md"

UNITS = {
    "gbps": "GB/s",
    "ghz": "GHz",
    "ns": "ns",
    "us": "µs",
    "cycles": "cycles",
    "bytes": "bytes",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
    "w": "W",
}
"""By the last word of a key that ends with its unit."""

_HEAD = f"""# Machine files, key by key

<!-- made by tools/machine_reference.py -->

[Machines](machines.md) says how to use a machine file, this page which keys it has. A key that is
unknown, missing or out of bounds is an error that names it. A number is exact: `0.1` is one tenth.
GB are 10⁹ bytes, GiB 2³⁰. No number may be above {MOST:,}; *above 0* means at least 2⁻²⁰
({float(LEAST):.2g}) for a quantity with a unit.
`kernbench machine schema` prints the same for editors.
"""


class Keys:
    """The groups of a schema, each written once, in the order in which they are first met."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._groups: dict[str, Any] = schema["$defs"]
        self._written: dict[str, str] = {}

    def sections(self, group: dict[str, Any], path: str) -> Iterator[str]:
        """Yield the section of a group, then those of the groups inside it."""
        yield f"## {f'`{path}`' if path else 'The file'}\n"
        yield f"{_as_text(group['description'])}\n"
        yield "| key | unit | value | default | meaning |\n| --- | --- | --- | --- | --- |"
        required = set(group.get("required", ()))
        inner = []
        for key, value in group["properties"].items():
            name = _group_of(value)
            default = "**required**" if key in required else _default(value.get("default"))
            meaning = _as_text(value["description"])
            if name and name not in self._written:
                below = f"{path}.{key}" if path else key
                below += ".*" if "additionalProperties" in str(_choices(value)) else ""
                self._written[name] = below
                inner.append((name, below))
            if name:
                meaning += f" Keys: `{self._written[name]}`."
            yield f"| `{key}` | {_unit(key)} | {_bounds(value)} | {default} | {meaning} |"
        yield ""
        for name, below in inner:
            yield from self.sections(self._groups[name], below)


def _choices(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a key may be, but null: that is the same as leaving it out."""
    return [each for each in value.get("anyOf", [value]) if each.get("type") != "null"]


def _group_of(value: dict[str, Any]) -> str | None:
    """Return the name of the group that a key holds, or a list or a mapping of such groups."""
    for each in _choices(value):
        inner = each.get("items", each.get("additionalProperties", each))
        if isinstance(inner, dict) and "$ref" in inner:
            name = str(inner["$ref"]).rpartition("/")[2]
            return None if name.endswith("Changes") else name
    return None


def _unit(key: str) -> str:
    last = key.rpartition("_")[2]
    if "_pj_per_" in key:
        return "pJ"
    if last in UNITS:
        return UNITS[last]
    # us_per_rank
    return UNITS.get(key.partition("_")[0], "")


def _bounds(value: dict[str, Any]) -> str:
    return " or ".join(_bounds_of(each) for each in _choices(value))


def _bounds_of(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return "a group"
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    kind = value.get("type")
    if kind == "array":
        if "prefixItems" in value.get("items", {}):
            return "list of pairs"
        return f"list of {_plural(_bounds_of(value['items']))}"
    if kind == "object":
        inner = value.get("additionalProperties")
        if isinstance(inner, dict) and "$ref" not in inner:
            return f"mapping to {_bounds_of(inner)}"
        return "mapping to groups"
    if kind in ("number", "integer"):
        return _number(value)
    return {"boolean": "`true`, `false`", "string": "text"}[str(kind)]


def _plural(text: str) -> str:
    return "groups" if text == "a group" else text.replace("integer", "integers", 1)


def _number(value: dict[str, Any]) -> str:
    word = "integer" if value["type"] == "integer" else "number"
    least = value.get("exclusiveMinimum", value.get("minimum"))
    most = value.get("maximum")
    if least is None:
        return word
    above = "exclusiveMinimum" in value or Fraction(least) == LEAST
    text = f"{word} above 0" if above else f"{word} from {least:g}"
    return text if most in (None, MOST) else f"{text} to {most:g}"


def _default(value: Any) -> str:
    if value in (None, [], {}, ""):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _as_text(docstring: str) -> str:
    """Return a docstring as one line of Markdown."""
    return " ".join(docstring.replace("``", "`").split())


def page() -> str:
    """Return the whole page."""
    schema = machine_schema()
    whole = schema["$defs"]["MachineSpec"]
    return "\n".join([_HEAD, *Keys(schema).sections(whole, "")]).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
