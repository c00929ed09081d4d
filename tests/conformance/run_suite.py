"""Run another project's own tests on kernbench and say how many pass.

    python tests/conformance/run_suite.py CHECKOUT [--suite distributed] [--commit HASH] [--update]
                                          [--share 0.2] [pytest arguments]

CHECKOUT is a checkout (or a bare clone) of the project's repository: Triton's, whose language tests
are run, or with ``--suite distributed`` PyTorch's, whose tests of DTensor and FSDP2 are. With
``--suite inductor`` it is a folder, ``test/inductor`` of PyTorch. They are
copied to a temporary folder and run from there: beside the sources, ``import triton`` would find
those and not the installed package. Nothing of those repositories is kept here.

A list beside this file says how many cases of each test function pass. The run fails when one has
become fewer; ``--update`` raises the numbers, and never lowers one, and writes a page in ``docs``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

try:
    from report import Outcome, build_report
    from suites import SUITES, Suite
except ImportError:  # as a module of the tests
    from tests.conformance.report import Outcome, build_report
    from tests.conformance.suites import SUITES, Suite


def main(arguments: list[str] | None = None) -> int:
    """Run the suite; return 0 if nothing that passed before fails now."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkout", type=Path, help="a checkout of the project's repository")
    parser.add_argument("--suite", choices=tuple(SUITES), default="triton", help="whose tests")
    parser.add_argument("--commit", help="which commit's tests to run")
    parser.add_argument("--under", help="the folder of the tests, where a repository has copies")
    parser.add_argument("--of", help="whose repository that is, if not the project's")
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds for each program; of Inductor, each test"
    )
    parser.add_argument("--share", type=float, default=1, help="of the tests, by hash of the names")
    parser.add_argument("--update", action="store_true", help="raise the list, write the page")
    parser.add_argument("--outcomes", type=Path, help="keep the outcome of each test here")
    options, extra = parser.parse_known_args(arguments)
    if not 0 < options.share <= 1:
        parser.error(f"--share must be above 0 and at most 1, but got {options.share:g}")
    suite = SUITES[options.suite]
    under = options.under or suite.under
    with tempfile.TemporaryDirectory(prefix="kernbench-conformance-") as name:
        if under:
            commit = options.commit or suite.commit or installed_commit()
            commit = copy_suite(suite, options.checkout, commit, under, Path(name))
            where = f"`{under}` of {options.of or suite.project} at commit `{commit}`"
        else:
            states = copy_folder(suite, options.checkout, Path(name))
            where = f"{states} of {options.of or suite.project}"
        outcomes_file = options.outcomes or Path(name) / "outcomes.jsonl"
        began_s = time.monotonic()
        asked = [*extra, f"--share={options.share:g}"] if options.share < 1 else extra
        suite.run(suite, Path(name) / under, outcomes_file.resolve(), asked, options.limit)
        took_s = time.monotonic() - began_s
        outcomes = read_outcomes(outcomes_file)
    passed = count_passed(outcomes)
    print_counts(outcomes)
    allowed = read_allowed(suite.allowed)
    # With pytest's -k or a file only a part ran: what did not run has not become fewer.
    ran = {function_of(test) for test, o in outcomes.items() if o.outcome != "not run"}
    fewer = {
        function: (passed.get(function, 0), allowed[function])
        for function in allowed
        if function in ran
        and not extra_selects(extra)
        # A share holds some of a function's cases only; a function that is one case, whole.
        and (options.share == 1 or function in outcomes)
        and passed.get(function, 0) < allowed[function]
    }
    for function, (now, before) in sorted(fewer.items()):
        print(f"FEWER PASS  {function}: {now}, but {before} are expected")
    if options.update:
        write_allowed(suite.allowed, raised(allowed, passed))
        if not extra_selects(extra):
            page = build_report(suite, outcomes, where, versions(suite), took_s, options.share)
            suite.report.write_text(page)
    return 1 if fewer else 0


def installed_commit() -> str:
    """Return the commit that the installed PyTorch was built from."""
    import torch

    return str(torch.version.git_version)


def copy_suite(suite: Suite, checkout: Path, commit: str, under: str, target: Path) -> str:
    """Copy the tests of a commit to ``target`` and return the commit's hash."""
    result = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "--verify", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        sys.exit(
            f"{checkout} has no commit {commit}; give the path of a clone of the {suite.project} "
            "repository, and another commit with --commit"
        )
    parts = [f"{under}/{part}" for part in suite.parts]
    archive = subprocess.run(
        ["git", "-C", checkout, "archive", commit, *parts], capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(target, filter="data")
    (target / "pytest.ini").write_text(suite.ini)
    return result.stdout.strip()


def copy_folder(suite: Suite, folder: Path, target: Path) -> str:
    """Copy the tests of a folder to ``target``; return their names and the states of the files."""
    states = []
    for part in suite.parts:
        path = folder / part
        if not path.is_file():
            sys.exit(
                f"{folder} has no {part}; give the folder of the {suite.project} repository that "
                "has it, of the installed release"
            )
        text = path.read_bytes()
        (target / part).write_bytes(text)
        states.append(f"`{part}` (SHA-256 `{hashlib.sha256(text).hexdigest()[:12]}`)")
    (target / "pytest.ini").write_text(suite.ini)
    return ", ".join(states)


def extra_selects(extra: list[str]) -> bool:
    """Return whether pytest's arguments leave tests out."""
    return any(item.startswith(("-k", "--maxfail", "-x")) or ".py" in item for item in extra)


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Return what the plugin wrote, by test id without the folders."""
    if not path.exists():
        sys.exit("pytest wrote no outcomes: see its output above")
    outcomes = {}
    for line in path.read_text().splitlines():
        test, outcome, reason = json.loads(line)
        # An end comes after the note that the test is there.
        outcomes[_short(test)] = Outcome(outcome, reason)
    return outcomes


def _short(test: str) -> str:
    name, bracket, case = test.partition("[")
    return name.rpartition("/")[2] + bracket + case


def function_of(test: str) -> str:
    """Return the test function of a test id.

    >>> function_of("test_core.py::test_abs[int8]")
    'test_core.py::test_abs'
    """
    return test.partition("[")[0]


def count_passed(outcomes: Mapping[str, Outcome]) -> Counter[str]:
    """Return how many cases of each function passed."""
    return Counter(function_of(test) for test, o in outcomes.items() if o.outcome == "passed")


def print_counts(outcomes: Mapping[str, Outcome]) -> None:
    """Print the number of cases per file and outcome."""
    by_file: dict[str, Counter[str]] = {}
    for test, outcome in outcomes.items():
        by_file.setdefault(test.partition("::")[0], Counter())[outcome.outcome] += 1
    for name, mine in by_file.items():
        print(
            f"{name}: {mine['passed']} of {mine.total()} passed, {mine['failed']} failed, "
            f"{mine['skipped']} skipped, {mine['not run']} not run"
        )


def read_allowed(path: Path) -> dict[str, int]:
    """Return how many cases of each function are expected to pass."""
    if not path.exists():
        return {}
    lines = (line.split() for line in path.read_text().splitlines() if line[:1] != "#")
    return {fields[0]: int(fields[1]) for fields in lines if fields}


def raised(allowed: Mapping[str, int], passed: Mapping[str, int]) -> dict[str, int]:
    """Return the larger of both numbers for every function: the list only grows.

    >>> raised({"a": 3, "b": 1}, {"b": 2, "a": 1})
    {'a': 3, 'b': 2}
    """
    return {
        function: max(allowed.get(function, 0), passed.get(function, 0))
        for function in sorted({*allowed, *passed})
    }


def write_allowed(path: Path, allowed: Mapping[str, int]) -> None:
    """Write the list; ``read_allowed`` gives it back."""
    lines = [f"{function} {number}" for function, number in sorted(allowed.items())]
    path.write_text("\n".join(["# Cases that pass, by test function. Only grows.", *lines, ""]))


def versions(suite: Suite) -> dict[str, str]:
    """Return the versions of what the tests ran on."""
    return {name: importlib.metadata.version(name) for name in suite.packages} | {
        "python": sys.version.split()[0]
    }


if __name__ == "__main__":
    sys.exit(main())
