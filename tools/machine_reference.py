"""Write the reference of machine files from the models that read them.

    python tools/machine_reference.py           print it
    python tools/machine_reference.py --write   put it into docs/machine-reference.md

Every key with its unit, its bounds, its default and the text under its field; the order is that
of the models.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernbench.hardware import machine_schema
from kernbench.hardware.schema import bounds_text, choices_of, default_text, group_of, unit_of
from kernbench.hardware.spec_base import LEAST, MOST

PAGE = Path(__file__).resolve().parents[1] / "docs" / "machine-reference.md"

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
            name = group_of(value)
            default = "**required**" if key in required else default_text(value.get("default"))
            meaning = _as_text(value["description"])
            if name and name not in self._written:
                below = f"{path}.{key}" if path else key
                below += ".*" if "additionalProperties" in str(choices_of(value)) else ""
                self._written[name] = below
                inner.append((name, below))
            if name:
                meaning += f" Keys: `{self._written[name]}`."
            yield f"| `{key}` | {unit_of(key)} | {bounds_text(value)} | {default} | {meaning} |"
        yield ""
        for name, below in inner:
            yield from self.sections(self._groups[name], below)


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
