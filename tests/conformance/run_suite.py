"""Run Triton's own language tests against kernbench and say how many pass.

    python tests/conformance/run_suite.py TRITON [--commit HASH] [--update] [pytest arguments]

TRITON is a checkout (or a bare clone) of the Triton repository. Its tests are copied to a temporary
folder and run from there: beside the sources, ``import triton`` would find those and not the
installed package. Nothing of that repository is kept here.

``allowed.txt`` says how many cases of each test function pass. The run fails when one has become
fewer; ``--update`` raises the numbers, and never lowers one, and writes ``docs/conformance.md``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

try:
    from report import Outcome, build_report
except ImportError:  # as a module of the tests
    from tests.conformance.report import Outcome, build_report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ALLOWED = HERE / "allowed.txt"
REPORT = ROOT / "docs" / "conformance.md"

SUITE_COMMIT = "192cdbe70c5a6b4c8724cac4bd83fc45b0f406ee"
"""The commit that the numbers in ``allowed.txt`` are of: shortly before Triton 3.8."""

FILES = ("test_core.py", "test_standard.py", "test_random.py", "test_tuple.py")

_INI = """[pytest]
markers =
  interpreter: may run in the interpreter
  enable_warmup: may be compiled without being run
  disable_warmup: must not be
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the suite; return 0 if nothing that passed before fails now."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("triton", type=Path, help="a checkout of the Triton repository")
    parser.add_argument("--commit", default=SUITE_COMMIT, help="which commit's tests to run")
    parser.add_argument("--update", action="store_true", help="raise allowed.txt, write the report")
    parser.add_argument("--outcomes", type=Path, help="keep the outcome of each test here (JSON)")
    options, extra = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kernbench-conformance-") as folder:
        commit = copy_suite(options.triton, options.commit, Path(folder))
        outcomes_file = options.outcomes or Path(folder) / "outcomes.json"
        run_pytest(Path(folder), outcomes_file.resolve(), extra)
        outcomes = read_outcomes(outcomes_file)
    passed = count_passed(outcomes)
    print_counts(outcomes)
    allowed = read_allowed(ALLOWED)
    # With pytest's -k or a file only a part ran: what did not run has not become fewer.
    ran = {function_of(test) for test in outcomes}
    fewer = {
        function: (passed.get(function, 0), allowed[function])
        for function in allowed
        if function in ran
        and not extra_selects(extra)
        and passed.get(function, 0) < allowed[function]
    }
    for function, (now, before) in sorted(fewer.items()):
        print(f"FEWER PASS  {function}: {now}, but {before} are expected")
    if options.update:
        write_allowed(ALLOWED, raised(allowed, passed))
        if not extra_selects(extra):
            REPORT.parent.mkdir(exist_ok=True)
            REPORT.write_text(build_report(outcomes, commit, versions()))
    return 1 if fewer else 0


def copy_suite(triton: Path, commit: str, target: Path) -> str:
    """Copy the language tests of a commit to ``target`` and return the commit's hash.

    A folder that is no git repository is taken as it is.
    """
    wanted = "python/test"
    found = subprocess.run(
        ["git", "-C", triton, "rev-parse", "--verify", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 0:
        archive = subprocess.run(
            [
                "git",
                "-C",
                triton,
                "archive",
                commit,
                f"{wanted}/unit/language",
                f"{wanted}/conftest.py",
            ],
            capture_output=True,
            check=True,
        )
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
            tar.extractall(target, filter="data")
        commit = found.stdout.strip()
    else:
        sys.exit(
            f"{triton} has no commit {commit}; give the path of a clone of the Triton repository, "
            "and another commit with --commit"
        )
    (target / "pytest.ini").write_text(_INI)
    return commit


def run_pytest(folder: Path, outcomes: Path, extra: list[str]) -> None:
    """Run the tests in the folder on kernbench."""
    environment = {
        **os.environ,
        # Many of the suite's kernels read what nobody wrote; what counts are their results.
        "KERNBENCH_CHECK": "0",
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
    }
    environment.setdefault("TRITON_CACHE_DIR", str(folder / "cache"))
    files = [f"language/{name}" for name in FILES]
    if any(".py" in each for each in extra):
        files = []
    command = [sys.executable, "-m", "pytest", "-p", "kernbench_conformance", "--device=cpu"]
    command += [f"--outcomes={outcomes}", "-q", "--tb=line", "--disable-warnings", "-W", "ignore"]
    command += ["-p", "no:cacheprovider", "-p", "no:benchmark", *files, *extra]
    subprocess.run(command, cwd=folder / "python" / "test" / "unit", env=environment, check=False)


def extra_selects(extra: list[str]) -> bool:
    """Return whether pytest's arguments leave tests out."""
    return any(each.startswith(("-k", "--maxfail", "-x")) or ".py" in each for each in extra)


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Return what the plugin wrote, by test id without the folders."""
    if not path.exists():
        sys.exit("pytest wrote no outcomes: see its output above")
    return {
        test.rpartition("/")[2] if "[" not in test else _short(test): Outcome(*outcome)
        for test, outcome in json.loads(path.read_text()).items()
    }


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
    for name in FILES:
        mine = Counter(o.outcome for test, o in outcomes.items() if test.startswith(name))
        if mine:
            print(
                f"{name}: {mine['passed']} of {mine.total()} passed, {mine['failed']} failed, "
                f"{mine['skipped']} skipped"
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


def versions() -> dict[str, str]:
    """Return the versions of what the tests ran on."""
    return {name: importlib.metadata.version(name) for name in ("triton", "torch", "numpy")} | {
        "python": sys.version.split()[0]
    }


if __name__ == "__main__":
    sys.exit(main())
