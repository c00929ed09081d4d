"""One configuration of a kernel of GEAK-eval, as its own test times it: by Triton's ``do_bench``.

arguments: the folder of tests, the name under which results are, and the parameters of one result.

Source: AMD-AGI/GEAK-eval, geak_eval/data/ROCm/data/ROCm_v1 and geak_eval/perf/ROCm.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from triton import knobs
from triton._C.libtriton import passes

from validation.programs.loops.timing import benched, say
from validation.programs.loops.tritonbench import imported


def cases(test: Any) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each case of a test."""
    marks = [each.args for each in test.pytestmark if each.name == "parametrize"]
    names = [
        [each.strip() for each in (name.split(",") if isinstance(name, str) else name)]
        for name, _ in marks
    ]
    for values in itertools.product(*(each for _, each in marks)):
        found: dict[str, Any] = {}
        for of_mark, value in zip(names, values, strict=True):
            found.update(zip(of_mark, value if len(of_mark) > 1 else [value], strict=True))
        yield found


def flat(value: Any) -> Iterator[Any]:
    """Yield what is in a value that may be a tuple."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from flat(each)
    else:
        yield value


def main() -> None:
    """Time a configuration."""
    # Triton multiplies float32 exactly on AMD's GPUs, unless a kernel asks for less. Kernels that
    # are kept on disk may be of the other default.
    knobs.language.fp32_default, knobs.compilation.always_compile = "ieee", True
    # The source's Triton took globals that are annotated as ``tl.constexpr``.
    knobs.compilation.allow_non_constexpr_globals = True
    folder, name, wanted = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])

    class Benchmarker:
        """Stands for the source's, which times every case."""

        def __init__(self, op_callable: Any, op_name: str, config: object) -> None:
            self.op = op_callable

        def run_benchmark(self, current_params_dict: dict[str, Any], **_: object) -> None:
            if json.loads(json.dumps(current_params_dict)) == wanted:
                say(benched(self.op))

    stub: Any = ModuleType("geak_eval.perf.ROCm.performance_utils_pytest")
    stub.PytestBenchmarker = Benchmarker
    stub.do_bench_config = stub.save_all_benchmark_results = lambda *_, **__: None
    for count in range(1, 5):
        package = ".".join(stub.__name__.split(".")[:count])
        sys.modules[package] = stub if count == 4 else ModuleType(package)
    said = f'OP_NAME_FOR_BENCHMARK = "{name}"'
    files = (each for each in folder.glob("*.py") if said in each.read_text(encoding="utf-8"))
    path = next(files, None)
    if path is None:
        raise SystemExit(f"no test is of {name}")
    # Triton makes a product of a sum of products; until its pull request 10545, of June 2026, only
    # where their factors were expanded, not reshaped.
    reshapes = "tl.reshape" in path.read_text(encoding="utf-8")
    sums = patch.object(passes.ttir, "add_combine", lambda _: None) if reshapes else nullcontext()
    with sums:
        run(imported("geak", path).test_performance, wanted)


def run(test: Any, wanted: dict[str, Any]) -> None:
    """Run the case of a test whose parameters are wanted."""
    values = {str(each) for each in flat(tuple(wanted.values()))}
    for case in cases(test):
        if all(str(each) in values for each in flat(tuple(case.values()))):
            try:
                test(**case, request=None)
            except pytest.skip.Exception:
                continue
    raise SystemExit("no case has such parameters")


if __name__ == "__main__":
    main()
