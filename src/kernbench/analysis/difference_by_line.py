"""What two runs differ by, by lines of their programs, though lines were added or moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, TypedDict

from rich.text import Text

from kernbench.analysis.difference import signed_ns
from kernbench.analysis.lines import lines_table, short_path, source_line
from kernbench.analysis.program_lines import CausedByLine, program_lines
from kernbench.analysis.tables import SHOWN_LINES, is_wide
from kernbench.report import format_ns

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.analysis.difference import WindowPair
    from kernbench.op_log import Site
    from kernbench.saved import SavedRun


_CHANGED_IN_PLACE = 0.6
"""How alike two lines are at least of which one has taken the other's place, as ``difflib`` counts
it; its documentation calls texts close from there on."""


class LineDifference(TypedDict):
    """A line of the two programs: what it has of the critical path of each run."""

    file: str
    """As the second run names it; as the first, where only that has the line."""
    line_before: int
    """0: only in the second run, or what no line is known for."""
    line_after: int
    source: str
    before_ns: float
    after_ns: float
    difference_ns: float
    launches_before: int
    launches_after: int


def difference_by_line(
    before: SavedRun, after: SavedRun, within: WindowPair = (None, None)
) -> list[LineDifference]:
    """Return the lines that two runs, or windows of them, differ by, the largest difference first.

    The times of all lines on the critical path add up to those of the runs, and so do their
    differences. Lines are aligned as ``diff`` aligns the sources that the runs were saved with.

    Raises:
        UsageError: A run has no record of the lines of its program.
    """
    lines = [
        {(it["file"], it["line"]): it for it in program_lines(run.log, run.ranks, part)["lines"]}
        for run, part in zip((before, after), within, strict=True)
    ]
    moved = _moved(before.sources, after.sources)
    ahead = {moved.get(site, site): site for site in lines[0]}
    difference = [
        _difference(
            lines[0][ahead[site]] if site in ahead else None,
            lines[1].get(site),
            after.sources if site in lines[1] else before.sources,
        )
        for site in dict.fromkeys([*ahead, *lines[1]])
    ]
    difference.sort(key=lambda it: (-abs(it["difference_ns"]), it["file"], it["line_after"]))
    return difference


def _moved(before: Mapping[str, str], after: Mapping[str, str]) -> dict[Site, Site]:
    """Return where lines of the first run are in the second one; gone ones are nowhere in it."""
    by_name: dict[str, list[str]] = {}
    for path in after:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    sites: dict[Site, Site] = {}
    names = {path.rpartition("/")[2] for path in before}
    renamed = [path for path in after if path.rpartition("/")[2] not in names]
    gone = [path for path in before if path.rpartition("/")[2] not in by_name]
    for path, text in before.items():
        alike = [path] if path in after else by_name.get(path.rpartition("/")[2], [])
        if gone == [path]:
            # A program that was copied and changed, as people do to compare.
            alike = renamed
        if len(alike) != 1:
            continue
        old, new = text.splitlines(), after[alike[0]].splitlines()
        sites |= {(path, number): (f"{path} (before)", number) for number in range(1, len(old) + 1)}
        sites |= {(path, a): (alike[0], b) for a, b in _aligned(old, new)}
    return sites


def _aligned(old: list[str], new: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of lines that are the same, or were changed in place."""
    for kind, first, end, second, last in SequenceMatcher(None, old, new, False).get_opcodes():
        if kind == "equal":
            yield from zip(range(first + 1, end + 1), range(second + 1, last + 1), strict=True)
        elif kind == "replace" and end - first == last - second:
            for a, b in zip(range(first, end), range(second, last), strict=True):
                if SequenceMatcher(None, old[a], new[b]).ratio() > _CHANGED_IN_PLACE:
                    yield a + 1, b + 1


def _difference(
    old: CausedByLine | None, new: CausedByLine | None, sources: Mapping[str, str]
) -> LineDifference:
    shown = new or old
    assert shown is not None
    times = [line["critical_path_ns"] if line else 0.0 for line in (old, new)]
    return {
        "file": shown["file"],
        "line_before": old["line"] if old else 0,
        "line_after": new["line"] if new else 0,
        "source": source_line(sources.get(shown["file"], ""), shown["line"]).strip(),
        "before_ns": times[0],
        "after_ns": times[1],
        "difference_ns": times[1] - times[0],
        "launches_before": old["launches"] if old else 0,
        "launches_after": new["launches"] if new else 0,
    }


_TITLES = ("line", "before", "after", "difference")
_WIDE_TITLES = (*_TITLES, "launches")


def print_difference_by_line(line_differences: list[LineDifference], console: Console) -> None:
    """Print the lines with the largest differences on the critical path."""
    changed = [difference for difference in line_differences if difference["difference_ns"]]
    if changed:
        titles = _WIDE_TITLES if is_wide(console) else _TITLES
        rows = [(cells[: len(titles)], source) for cells, source in _rows(changed)]
        console.print("", lines_table(console, titles, rows), sep="\n")
    else:
        console.print("", Text("no line has another share of the critical path"), sep="\n")


def _rows(changed: list[LineDifference]) -> Iterator[tuple[list[str], str]]:
    for line_difference in changed[:SHOWN_LINES]:
        launches = [line_difference["launches_before"], line_difference["launches_after"]]
        cells = [
            _place(line_difference),
            format_ns(line_difference["before_ns"]),
            format_ns(line_difference["after_ns"]),
            signed_ns(line_difference["difference_ns"]),
            " -> ".join(map(str, launches if launches[0] != launches[1] else launches[:1])),
        ]
        yield cells, line_difference["source"]
    rest = changed[SHOWN_LINES:]
    if rest:
        left_ns = sum(difference["difference_ns"] for difference in rest)
        yield [f"({len(rest)} more)", "", "", signed_ns(left_ns), ""], ""


def _place(line_difference: LineDifference) -> str:
    if not line_difference["file"]:
        return "(no line known)"
    numbers = [line_difference["line_before"] or "new", line_difference["line_after"] or "gone"]
    shown = f"{numbers[1]}" if numbers[0] == numbers[1] else f"{numbers[0]} -> {numbers[1]}"
    return f"{short_path(line_difference['file']).rpartition('/')[2]}:{shown}"
