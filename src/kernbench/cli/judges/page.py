"""A batch of verdicts as a page: leaderboards, and each candidate's lines. It needs no scripts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from kernbench.report import format_ns

_ORDER = ("right and fast enough", "right", "cannot say", "wrong", "cheat")
_MARKS = {"right and fast enough": "good", "right": "good", "wrong": "bad", "cheat": "bad"}
_MOST_SOURCE = 200_000


def verdicts_page(verdicts: Sequence[Mapping[str, Any]], sources: Mapping[str, str]) -> str:
    """Return the page of a batch: a leaderboard for each task and machine.

    ``sources`` has the text of each candidate by its path. The same verdicts give the same page.
    """
    boards: dict[tuple[str, str], list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]]
    boards = defaultdict(list)
    machines: dict[str, set[str]] = defaultdict(set)
    for verdict in verdicts:
        machines[verdict["task"]] |= {item["machine"] for item in verdict["times"]}
    for verdict in verdicts:
        times = {item["machine"]: item for item in verdict["times"]}
        for machine in sorted(machines[verdict["task"]]) or [""]:
            boards[verdict["task"], machine].append((verdict, times.get(machine)))
    counts = Counter(verdict["outcome"] for verdict in verdicts)
    style = (resources.files("kernbench.cli.judges") / "page.css").read_text(encoding="utf-8")
    said = ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])
    title = f"{len(verdicts)} candidate{'' if len(verdicts) == 1 else 's'} judged"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<p>{escape(said)}</p>\n"
        '<p class="quiet">Times are modeled; the range is that in which four of five such times '
        "would be measured. Right candidates come first, the fastest at the top. A row opens.</p>\n"
    ]
    for (task, machine), entries in sorted(boards.items()):
        parts.append(_board(task, machine, entries, sources))
    parts.append("</body>\n</html>\n")
    return "".join(parts)


def _board(
    task: str,
    machine: str,
    entries: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
    sources: Mapping[str, str],
) -> str:
    def place(entry: tuple[Mapping[str, Any], Mapping[str, Any] | None]) -> tuple[int, float, str]:
        verdict, time = entry
        rank = max(_ORDER.index(verdict["outcome"]) - 1, 0)  # fast enough or not, both are right
        return rank, time["time_ns"] if time else float("inf"), verdict["candidate"]

    where = f" on {escape(machine)}" if machine else ""
    parts = [
        f"<h2>{escape(_short(task))}{where}</h2>\n"
        '<div class="row"><span></span><span>candidate</span><span>verdict</span>'
        '<span class="number">time</span><span>range</span><span class="number">over eager</span>'
        "</div>\n"
    ]
    for number, (verdict, time) in enumerate(sorted(entries, key=place), 1):
        mark = _MARKS.get(verdict["outcome"], "unsure")
        name = escape(_short(verdict["candidate"]))
        took = format_ns(time["time_ns"]) if time else "-"
        ranged = over = "-"
        if time and time["low_ns"] is not None:
            ranged = f"{format_ns(time['low_ns'])} to {format_ns(time['high_ns'])}"
        if time and time["speedup"] is not None:
            over = f"{time['speedup']:.2f}x"
        parts.append(
            f'<details>\n<summary><span class="quiet">{number}</span>'
            f'<span title="{escape(verdict["candidate"])}">{name}</span>'
            f'<span class="{mark}">{escape(verdict["outcome"])}</span>'
            f'<span class="number">{took}</span><span class="quiet">{ranged}</span>'
            f'<span class="number">{over}</span></summary>\n'
            f'<div class="inside">{_inside(verdict, time, sources)}</div>\n</details>\n'
        )
    return "".join(parts)


def _inside(
    verdict: Mapping[str, Any], time: Mapping[str, Any] | None, sources: Mapping[str, str]
) -> str:
    lines = [verdict["why"], *verdict["tricks"]]
    failure = verdict["failure"]
    if failure:
        lines.append(f"Smallest failing case: size {failure['size']}, {failure['values']} values.")
        lines += failure["says"].splitlines()[1:]
        if failure["line"]:
            lines.append(f"Written by {failure['line']}.")
    if time:
        lines.append(
            f"Compared with eager: {time['speed']}. Nothing is faster than "
            f"{format_ns(time['floor_ns'])}, its bytes; own kernels take {time['own_share']:.0%}."
        )
        lines += [
            f"{item['name']}{'' if item['is_own'] else ' (library)'}: "
            f"{format_ns(item['time_ns'])}, {item['share']:.0%}, bound by {item['bound_by']}"
            for item in time["kernels"]
        ]
        lines += [
            f"At most {format_ns(item['gain_ns'])} less: {item['what']}." for item in time["gains"]
        ]
        lines += time["remarks"]
    lines += verdict["remarks"]
    texts = "".join(f"<p>{escape(line)}</p>\n" for line in dict.fromkeys(lines))
    source = sources.get(verdict["candidate"], "")[:_MOST_SOURCE]
    if not source:
        return texts
    costliest = [line["line"] for item in (time or {}).get("kernels", []) for line in item["lines"]]
    place = failure["line"] if failure else next(iter(costliest), "")
    at = re.search(r":(\d+)$", place)
    marked = int(at.group(1)) if at else 0
    numbered = "".join(
        f'<span data-n="{number}"{" class=at" * (number == marked)}>{escape(line) or " "}</span>'
        for number, line in enumerate(source.splitlines(), 1)
    )
    return f"{texts}<pre>{numbered}</pre>"


def _short(path: str) -> str:
    """Return a file's name with that of its folder, which tells tasks of one name apart."""
    return "/".join(Path(path).parts[-2:])
