"""Count the lines of Python that this repository maintains, and compare them with their budget.

    python tools/line_budget.py           say where they stand
    python tools/line_budget.py --write   take today's numbers as the budget

The budget is ``tools/line_budget.toml``. It is a test, too: a change that needs more lines raises
it, and says in its description what they buy; one that needs less lowers it.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tools" / "line_budget.toml"
_HEAD = """\
# The most lines of Python that each folder may have: today's numbers, kept by CI.
# A change that needs more says what they buy: python tools/line_budget.py --write
[most_lines]
"""


def lines_of(folder: Path) -> int:
    """Return how many lines the Python files of a folder have."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in folder.rglob("*.py")
        if "build" not in path.relative_to(folder).parts
    )


def budget() -> Mapping[str, int]:
    """Return the most lines by folder."""
    most: Mapping[str, int] = tomllib.loads(FILE.read_text(encoding="utf-8"))["most_lines"]
    return most


def verdicts(most: Mapping[str, int], counted: Mapping[str, int]) -> list[str]:
    """Return a sentence for every folder that has other than its lines, with what to do."""
    result = []
    for folder, limit in most.items():
        lines = counted[folder]
        if lines > limit:
            result.append(
                f"{folder} has {lines} lines, {lines - limit} more than its budget of {limit}: "
                f"make the change smaller, or raise the budget with python tools/line_budget.py "
                f"--write and say in the change what the lines buy"
            )
    return result


def main() -> None:
    """Print the lines of each folder, or write them as the budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="take today's numbers")
    asked = parser.parse_args()
    counted = {folder: lines_of(ROOT / folder) for folder in budget()}
    if asked.write:
        text = "".join(f'"{folder}" = {lines}\n' for folder, lines in counted.items())
        FILE.write_text(_HEAD + text, encoding="utf-8")
    for folder, limit in budget().items():
        print(f"{folder:<24} {counted[folder]:>7} of {limit}")


if __name__ == "__main__":
    main()
