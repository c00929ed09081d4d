"""adr/README.md has every record once, by its title, with what supersedes what."""

from __future__ import annotations

import re
from pathlib import Path

from tests.adr.test_adr_links import adr_files, front_matter

INDEX = Path(__file__).parents[2] / "adr" / "README.md"
LINE = re.compile(r"^- \[(?P<number>\d{4})\]\((?P<file>[^)]*)\) (?P<text>.*)$", re.MULTILINE)
TITLE = re.compile(r"^# (?:\d{4}:? )?(.*)$", re.MULTILINE)


def entries() -> list[re.Match[str]]:
    return list(LINE.finditer(INDEX.read_text(encoding="utf-8")))


def test_every_record_is_in_the_index_exactly_once() -> None:
    assert sorted(entry["file"] for entry in entries()) == [path.name for path in adr_files()]


def test_no_number_is_given_twice() -> None:
    numbers = [path.name[:4] for path in adr_files()]
    assert len(numbers) == len(set(numbers))


def test_an_entry_says_what_the_record_says() -> None:
    by_file = {entry["file"]: entry for entry in entries()}
    fronts = {path: front_matter(path) for path in adr_files()}
    for path, front in fronts.items():
        title = TITLE.search(path.read_text(encoding="utf-8"))
        assert title is not None, path.name
        notes = []
        if front["status"] != "accepted":
            notes.append(front["status"])
        if front["supersedes"] != "-":
            notes.append(f"supersedes {front['supersedes']}")
        for later, other in fronts.items():
            number, _, decision = other["supersedes"].partition("-")
            if number == path.name[:4] and decision:
                notes.append(f"{decision} superseded by {later.name[:4]}")
        noted = f" ({'; '.join(notes)})" if notes else ""
        assert by_file[path.name]["number"] == path.name[:4]
        assert by_file[path.name]["text"] == title[1] + noted
