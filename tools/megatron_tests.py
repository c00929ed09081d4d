"""Run megatron-core's own tests of tensor parallelism on simulated ranks.

usage: python tools/megatron_tests.py CHECKOUT [--ranks N] [--list FILE] [--update]

CHECKOUT is a folder with Megatron-LM's ``tests/unit_tests`` of the release of megatron-core that is
installed; nothing is fetched. The tests that must pass are in ``tests/torch_bridge/megatron.txt``;
``--update`` adds those that pass now, and takes none away.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from kernbench.cli.programs.failures import describe_failure
from kernbench.runtime_api import RuntimeContext
from kernbench.torch_bridge import run_torchrun

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests/torch_bridge/megatron.txt"
RANK = Path(__file__).with_name("megatron_rank.py")
FOLDER = "tests/unit_tests/tensor_parallel"


def names_in(path: Path) -> Iterator[str]:
    """Yield the tests of a file, one per set of parameters."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield from _variants(node.name, node)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test"):
                    yield from _variants(f"{node.name}::{inner.name}", inner)


def _variants(name: str, node: ast.FunctionDef) -> list[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize"):
            values = decorator.args[1]
            assert isinstance(values, ast.List)
            return [f"{name}[{index}]" for index in range(len(values.elts))]
    return [name]


def run_file(checkout: Path, path: Path, ranks: int) -> tuple[list[str], dict[str, str]]:
    """Run a file's tests; return those that pass, and why others fail."""
    left, passed, failed = list(names_in(path)), list[str](), dict[str, str]()
    module = ".".join(path.relative_to(checkout).with_suffix("").parts)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            error = _run(checkout, module, left, ranks, Path(folder))
            done = [path.read_text().splitlines() for path in Path(folder).iterdir()]
        through = set.intersection(*map(set, done)) if len(done) == ranks else set()
        passed += [name for name in left if name in through]
        left = [name for name in left if name not in through]
        if left:
            failed[left.pop(0)] = "skipped or not found" if error is None else error
    return passed, failed


def _run(checkout: Path, module: str, names: list[str], ranks: int, folder: Path) -> str | None:
    code = compile(RANK.read_text(), str(RANK), "exec")
    context = RuntimeContext(machine="ahbm", ranks=ranks)
    try:
        with context, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            argv = [str(RANK), str(checkout), str(folder), module, *names]
            run_torchrun(context, RANK, code, argv, ranks, shown=())
    except (Exception, BaseExceptionGroup) as error:
        return describe_failure(error)
    return None


def main() -> int:
    """Run all files and compare with the list; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    files = sorted((options.checkout / FOLDER).glob("test_*.py"))
    if not files:
        parser.error(f"{options.checkout} has no {FOLDER}/test_*.py")
    listed = set(options.list.read_text().split())
    passing: set[str] = set()
    for path in files:
        passed, failed = run_file(options.checkout, path, options.ranks)
        passing |= {f"{path.name}::{name}" for name in passed}
        for name in passed:
            print(f"pass {path.name}::{name}", flush=True)
        for name, why in failed.items():
            print(f"FAIL {path.name}::{name}\n{why}", flush=True)
    lost = sorted(listed - passing)
    print(f"{len(passing)} pass, {len(passing - listed)} of them not listed, {len(lost)} are lost")
    if options.update:
        options.list.write_text("".join(f"{name}\n" for name in sorted(listed | passing)))
    for name in lost:
        print(f"lost {name}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
