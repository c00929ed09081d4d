"""Make the changelog of a release from the files in changelog.d.

python tools/changelog.py                   print what the next release would say
python tools/changelog.py --release 0.2.0   put it into CHANGELOG.md, and remove the files
"""

from __future__ import annotations

import argparse
import datetime
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "fixed")
_NAME = re.compile(r"(?P<what>[a-z0-9-]+)\.(?P<kind>" + "|".join(KINDS) + r")\.md")


def fragments(folder: Path) -> dict[str, list[Path]]:
    """Return the files of changes by kind, each kind in the order of names.

    Raises:
        ValueError: A file's name does not say what kind of change it is, or it is empty.
    """
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.iterdir()):
        named = _NAME.fullmatch(path.name)
        if named is None:
            raise ValueError(f"{path.name} must be named <what>.<{'|'.join(KINDS)}>.md")
        if not path.read_text(encoding="utf-8").strip():
            raise ValueError(f"{path.name} is empty; say in users' words what changed")
        found[named["kind"]].append(path)
    return found


def section(title: str, found: dict[str, list[Path]]) -> str:
    """Return the changes under a heading, one bullet each."""
    lines = [f"## {title}", ""]
    for kind, paths in found.items():
        if paths:
            bullets = [_bullet(path.read_text(encoding="utf-8")) for path in paths]
            lines += [f"### {kind.capitalize()}", "", *bullets, ""]
    return "\n".join(lines)


def _bullet(text: str) -> str:
    """Return a change as an item of a list; what stands in several paragraphs stays in them."""
    return "- " + textwrap.indent(text.strip(), "  ").lstrip()


def release(version: str, root: Path = ROOT) -> None:
    """Put the changes under a version at the top of the changelog, and remove their files."""
    found = fragments(root / "changelog.d")
    page = root / "CHANGELOG.md"
    head, begins, older = page.read_text(encoding="utf-8").partition("\n## ")
    if not begins:
        raise ValueError(f"{page.name} has no release yet to put another above")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    new = section(f"{version} ({today})", found)
    page.write_text(f"{head}\n{new}{begins}{older}", encoding="utf-8")
    for paths in found.values():
        for path in paths:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--release", metavar="VERSION", help="put it into CHANGELOG.md")
    version = parser.parse_args().release
    if version:
        release(version)
    else:
        print(section("the next release", fragments(ROOT / "changelog.d")))


if __name__ == "__main__":
    main()
