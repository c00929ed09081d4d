"""The pages on conformance in ``docs``: what was run, what passes, and why the rest does not."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Heading(Protocol):
    """What a page says of the tests as a whole."""

    @property
    def title(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def how(self) -> str: ...
    @property
    def explained(self) -> tuple[tuple[str, str], ...]: ...


class Outcome(NamedTuple):
    """What became of one test case."""

    outcome: str
    """``passed``, ``failed``, ``skipped`` or ``not run``."""
    reason: str


def build_report(
    suite: Heading,
    outcomes: Mapping[str, Outcome],
    where: str,
    versions: Mapping[str, str],
    took_s: float,
    share: float = 1,
    *,
    unit: str = "file",
    script: str = "run_suite.py",
) -> str:
    """Return the page, in Markdown; a case is named ``UNIT::function[what]``."""
    ran_on = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"# {suite.title}",
        "",
        f"Written by `{suite.command}`, `tests/conformance/{script}`; not edited by hand.",
        "",
        f"Tests: {where}, {suite.how}",
        *[f"A sample, by hash of the names: {share:.0%} of the cases."] * (share < 1),
        f"Run on: {ran_on}. It took {-(-took_s // 60):.0f} minutes.",
        "",
    ]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for test, outcome in outcomes.items():
        counts[test.partition("::")[0]][outcome.outcome] += 1
    # A column that is empty for most suites.
    cut_off = any(count["not run"] for count in counts.values())
    lines += [
        f"| {unit} | cases | passed | failed | skipped by the test |" + " not run |" * cut_off,
        "| --- | ---: | ---: | ---: | ---: |" + " ---: |" * cut_off,
    ]
    for name, count in counts.items():
        cells = [name, count.total(), count["passed"], count["failed"], count["skipped"]]
        cells += [count["not run"]] * cut_off
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "## Every failure, by reason", ""]
    lines += _by_reason(outcomes, "failed", suite) or ["None."]
    lines += ["", "## Skipped by the tests themselves, by reason", ""]
    lines += _by_reason(outcomes, "skipped", suite) or ["None."]
    if cut_off:
        lines += ["", "## Not run, by reason", "", *_by_reason(outcomes, "not run", suite)]
    return "\n".join([*lines, ""])


def _by_reason(outcomes: Mapping[str, Outcome], wanted: str, suite: Heading) -> list[str]:
    """Return list items: a reason, and how many cases of which functions it holds for."""
    functions: dict[str, Counter[str]] = defaultdict(Counter)
    for test, (outcome, reason) in outcomes.items():
        if outcome == wanted:
            functions[general(reason)][test.partition("[")[0]] += 1
    lines = []
    for reason, count in sorted(functions.items(), key=lambda item: -item[1].total()):
        explained = (text for pattern, text in suite.explained if re.search(pattern, reason))
        why = next(explained, "")
        lines.append(f"- {count.total()} x {_code(reason)}{': ' if why else ''}{why}")
        lines += [f"  - `{function}`: {number}" for function, number in sorted(count.items())]
    return lines


def general(reason: str) -> str:
    """Return a reason without what differs from case to case.

    >>> general("AssertionError: Mismatched elements: 3 / 128 (2.34%)")
    'AssertionError: Mismatched elements: N / N (N%)'
    """
    reason = re.sub(r"0x[0-9a-f]+", "N", reason)
    reason = re.sub(r"/tmp/\S+/", "", reason)
    return re.sub(r"(?<![A-Za-z_\d])-?\d+(\.\d+)?(e[+-]?\d+)?(?![A-Za-z_])", "N", reason)


def _code(reason: str) -> str:
    return "`" + reason.replace("`", "'") + "`"
