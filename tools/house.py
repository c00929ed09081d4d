"""Draw the house from its import contracts, so that the picture stays true.

    python tools/house.py           print it
    python tools/house.py --write   put it into docs/architecture.md

Each line is a layer: it imports only from the lines below, and what stands on one line does not
import each other. Rooms of a package stand behind it, the upper ones first; what a package is for
is the first line of its docstring.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
_BEGIN, _END = "<!-- house: made by tools/house.py -->\n", "<!-- end of the house -->\n"
_BETWEEN = re.compile(r"\s*[|:]\s*")


def contracts() -> dict[str, list[list[str]]]:
    """Return the layers of every package that has them, the upper ones first, by dotted name."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        container: [_BETWEEN.split(layer) for layer in contract["layers"]]
        for contract in config["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
        for container in contract["containers"]
    }


def purpose(name: str) -> str:
    """Return the first line of the docstring of a module or package, without its full stop."""
    path = (ROOT if name.startswith("validation") else ROOT / "src") / Path(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0].rstrip(".")


def picture() -> str:
    """Return the house as text."""
    houses = contracts()
    lines = ["```text"]
    for layer in houses["kernbench"]:
        lines.append(" | ".join(layer))
        for name in layer:
            rooms = houses.get(f"kernbench.{name}")
            if rooms:
                order = " > ".join(" | ".join(room) for room in rooms)
                lines.append(f"    {name}: {order}")
    lines += ["```", "", "| package or room | what it is |", "| --- | --- |"]
    for layer in houses["kernbench"]:
        for name in layer:
            lines.append(f"| `{name}` | {purpose(f'kernbench.{name}')} |")
            for room in (room for rooms in houses.get(f"kernbench.{name}", []) for room in rooms):
                if (ROOT / "src/kernbench" / name / room).is_dir():
                    lines.append(f"| `{name}.{room}` | {purpose(f'kernbench.{name}.{room}')} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """Return the page with today's picture in it."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{picture()}\n{_END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put it into docs/architecture.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(picture())


if __name__ == "__main__":
    main()
