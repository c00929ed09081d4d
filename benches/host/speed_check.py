"""Compare how fast the simulator is with what was kept (``make bench-check``).

Seconds are worth nothing on another or a busy machine. So each case is a ratio: its CPU time over
that of a fixed loop of the same kind of work, plain Python or numpy, taken in turns with it in one
process, the least of many rounds. Beside it goes the number of bytecodes that one round executes,
which nothing on the machine disturbs; it is compared where Python is of the kept release. Each case
has a process of its own: what others left in memory would make its reference half as slow again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

MARGIN = 1.5
"""What is slower by more than this factor fails."""
TRIES = 3
"""How often a case is measured before it is called slower; the best counts."""
BASELINE = Path(__file__).with_name("baseline.json")


@dataclass(frozen=True)
class Measured:
    """A case: its CPU time over that of its reference, and its bytecodes (0: not counted)."""

    ratio: float
    bytecodes: int = 0

    def best_of(self, other: Measured) -> Measured:
        return Measured(min(self.ratio, other.ratio), min(self.bytecodes, other.bytecodes))


@dataclass(frozen=True)
class Baseline:
    """What was measured once, of which commit, when, and by which release of Python."""

    commit: str
    date: str
    python: str
    cases: Mapping[str, Measured]

    def to_json(self) -> str:
        cases = {name: asdict(self.cases[name]) for name in sorted(self.cases)}
        whole = {"commit": self.commit, "date": self.date, "python": self.python, "cases": cases}
        return json.dumps(whole, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Baseline:
        whole = json.loads(text)
        cases = {name: Measured(**value) for name, value in whole["cases"].items()}
        return cls(whole["commit"], whole["date"], whole["python"], cases)


def factor(now: Measured, kept: Measured, same_python: bool) -> float:
    """Return how many times as slow a case is as it was, by the worse of its two measures."""
    by_time = now.ratio / kept.ratio
    if same_python and now.bytecodes and kept.bytecodes:
        return max(by_time, now.bytecodes / kept.bytecodes)
    return by_time


def is_slower(now: Measured, kept: Measured, same_python: bool) -> bool:
    return factor(now, kept, same_python) > MARGIN


def measure(case: Callable[[], Measured], kept: Measured | None, same_python: bool) -> Measured:
    """Return a case's measure, taken again while it seems slower than it was.

    What nothing is kept of is taken as often as may be: a baseline of a bad moment hides much.
    """
    best = case()
    for _ in range(TRIES - 1):
        if kept is not None and not is_slower(best, kept, same_python):
            break
        best = best.best_of(case())
    return best


def apart(work: Callable[..., Measured], *args: object) -> Measured:
    """Return what a function returns in a process of its own, which has all modules of this one."""
    with ProcessPoolExecutor(1, get_context("fork")) as process:
        return process.submit(work, *args).result()


def complaints(
    result: Mapping[str, Measured], kept: Baseline, python: str, skipped: Sequence[str] = ()
) -> list[str]:
    """Return a line for each case that is slower than it was, or that cannot be compared."""
    lines = []
    same_python = kept.python == python
    for name, now in result.items():
        before = kept.cases.get(name)
        if before is None:
            lines.append(f"{name}: has no baseline; keep one by make bench-baseline")
        elif is_slower(now, before, same_python):
            lines.append(
                f"{name}: {factor(now, before, same_python):.2f} times as slow as at {kept.commit} "
                f"({shown(before)} then, {shown(now)} now; at most {MARGIN} times passes)"
            )
    gone = [name for name in kept.cases if name not in result and name not in skipped]
    return lines + [f"{name}: is in the baseline, but no case of that name ran" for name in gone]


def shown(measured: Measured) -> str:
    counted = f", {measured.bytecodes:,} bytecodes" if measured.bytecodes else ""
    return f"{measured.ratio:.2f}x its reference{counted}"


def table(result: Mapping[str, Measured], kept: Baseline | None, python: str) -> str:
    """Return all cases, with how many times as slow they are as the baseline's."""
    width = max(map(len, result), default=0)
    lines = []
    for name, now in result.items():
        before = None if kept is None else kept.cases.get(name)
        times = (
            ""
            if before is None or kept is None
            else (f"{factor(now, before, kept.python == python):.2f} of the baseline, ")
        )
        lines.append(f"  {name:<{width}}  {times}{shown(now)}")
    return "\n".join(lines)


def here(*args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def describe_commit() -> tuple[str, str]:
    """Return the commit that is checked out, marked where files differ from it, and its date."""
    dirty = "+" if here("status", "--porcelain", "--untracked-files=no") else ""
    return (here("rev-parse", "--short=7", "HEAD") or "unknown") + dirty, here(
        "log", "-1", "--format=%cs"
    )


def run(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--write", action="store_true", help="keep what is measured as baseline")
    parser.add_argument("--only", help="cases whose names contain this")
    asked = parser.parse_args(argv)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        # Before numpy is imported: threads that wait for each other take CPU time.
        os.environ[name] = "1"
    from short_cases import CASES, UNAVAILABLE, run_case

    python = platform.python_version().rpartition(".")[0]
    kept = Baseline.from_json(BASELINE.read_text()) if BASELINE.exists() else None
    same_python = kept is not None and kept.python == python
    before = {} if kept is None or asked.write else kept.cases
    measures = {
        name: measure(partial(apart, run_case, name), before.get(name), same_python)
        for name in CASES
        if asked.only is None or asked.only in name
    }
    print(table(measures, kept, python))
    for name, why in UNAVAILABLE.items():
        print(f"  {name}: not measured, {why}")
    if asked.write:
        if asked.only is not None or UNAVAILABLE:
            parser.error("a baseline is written whole")
        BASELINE.write_text(Baseline(*describe_commit(), python, measures).to_json())
        return 0
    if kept is None:
        parser.error(f"there is no {BASELINE.name}; write one by make bench-baseline")
    if not same_python:
        print(f"  bytecodes are not compared: Python is {python}, the baseline's is {kept.python}")
    skipped = [name for name in kept.cases if name not in CASES or name not in measures]
    unknown = [*UNAVAILABLE] if asked.only is None else skipped
    lines = complaints(measures, kept, python, unknown)
    for line in lines:
        print(f"slower: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    # The cases import this file by its name: let there be one of it.
    import speed_check

    sys.exit(speed_check.run())
