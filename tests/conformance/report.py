"""``docs/conformance.md``: what was run, what passes, and why the rest does not."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

EXPLAINED: tuple[tuple[str, str], ...] = (
    (r"Unknown key: '(ttgir|llir|ptx)'", "reads the IR of a later stage; kernbench ends at TTIR"),
    (
        r"not compiled with CUDA|pin_memory|NoneType.*and 'int'|DID NOT RAISE ValueError",
        "asks PyTorch for a GPU, or expects that a CPU tensor is refused",
    ),
    (
        r"too many indices for tensor of rank|Block pointers have been removed|CompileTimeAssert"
        r"|does not compile",
        "the test is older than the installed Triton, whose front end refuses it",
    ),
    (
        r"Tensor-likes are not close",
        "one element whose terms nearly cancel: PyTorch's 16-bit product, or float32 sums in "
        "another order, differ by more than the test allows",
    ),
    (
        r"assert None is not None",
        "expects a compilation, but clears the kernel cache of PyTorch's device and not of ours",
    ),
    (r"scf\.|cf\.cond_br|needs data", "control flow that depends on data"),
)
"""What an error text means, for the page's readers."""


class Outcome(NamedTuple):
    """What became of one test case."""

    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    reason: str


def build_report(outcomes: Mapping[str, Outcome], commit: str, versions: Mapping[str, str]) -> str:
    """Return the page, in Markdown."""
    ran_on = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        "# Conformance with Triton's own tests",
        "",
        "Written by `make conformance TRITON=path ARGS=--update`, "
        "`tests/conformance/run_suite.py`; not edited by hand.",
        "",
        f"Tests: `python/test/unit/language` of Triton at commit `{commit}`, with `--device=cpu`: "
        "CPU tensors of PyTorch as arguments, on the machine `ahbm`. Nothing of them is kept in "
        "this repository.",
        f"Run on: {ran_on}.",
        "",
        "| file | cases | passed | failed | skipped by the test |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for test, outcome in outcomes.items():
        by_file[test.partition("::")[0]][outcome.outcome] += 1
    for name, count in by_file.items():
        lines.append(
            f"| {name} | {count.total()} | {count['passed']} | {count['failed']} | "
            f"{count['skipped']} |"
        )
    lines += ["", "## Every failure, by reason", ""]
    lines += _by_reason(outcomes, "failed") or ["None."]
    lines += ["", "## Skipped by the tests themselves, by reason", ""]
    lines += _by_reason(outcomes, "skipped") or ["None."]
    return "\n".join([*lines, ""])


def _by_reason(outcomes: Mapping[str, Outcome], wanted: str) -> list[str]:
    """Return list items: a reason, and how many cases of which functions it holds for."""
    functions: dict[str, Counter[str]] = defaultdict(Counter)
    for test, (outcome, reason) in outcomes.items():
        if outcome == wanted:
            functions[general(reason)][test.partition("[")[0]] += 1
    lines = []
    for reason, count in sorted(functions.items(), key=lambda item: -item[1].total()):
        why = next((text for pattern, text in EXPLAINED if re.search(pattern, reason)), "")
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
