"""One input of a benchmark of TritonBench, as its own script times it: by Triton's ``do_bench``.

arguments: the clone, ``perf_G`` (Triton kernels) or ``perf_T`` (operations of PyTorch), the
operation, and the sizes of the input as results say them.

Source: thunlp/TritonBench, performance_metrics.
"""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from validation.programs.loops.timing import benched, say

_PACKAGES = {"perf_G": "TritonBench", "perf_T": "TorchBench"}


def imported(name: str, path: Path, tests: str = "") -> ModuleType:
    """Import a file by a name, up to the line that begins its tests."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    text = path.read_text(encoding="utf-8")
    exec(compile(text.partition(tests)[0] if tests else text, str(path), "exec"), vars(module))
    return module


def sizes(inputs: Any) -> list[Any]:
    """Return an input as results may say it: of a tensor alone, its size or those of its rows."""
    if isinstance(inputs, torch.Tensor):
        first, *others = inputs.shape
        return [[[first, *others]], [others] * first if others else []]
    said = [list(each.shape) if isinstance(each, torch.Tensor) else each for each in inputs]
    return [json.loads(json.dumps(said, default=str))]


def main() -> None:
    """Time an input."""
    clone, part, op, size = Path(sys.argv[1]), *sys.argv[2:]
    op, said = op.removesuffix(".py").rstrip("."), json.loads(size)
    package = f"{_PACKAGES[part]}_v1"
    sys.modules[package] = ModuleType(package)
    benchmarks = clone / "performance_metrics" / part
    sys.path.append(str(benchmarks))
    with torch.device("cuda"):
        kernels = clone / "data" / f"TritonBench_{part[-1]}_v1" / f"{op}.py"
        imported(f"{package}.{op}", kernels, tests="#" * 146)
        bench = imported("perf", benchmarks / "golden_metrics" / f"{op}_perf.py")
        metrics = bench.performance_metrics()
        metrics.get_input_tensors()
        alike = (each for each in metrics.input_tensors if said in sizes(each))
        inputs = next(alike, None)
        if inputs is None:
            raise SystemExit("no input of such sizes")
        inputs = metrics.to_cuda(inputs)
        metrics.input_tensors.clear()
        say(benched(lambda: metrics.call_op(inputs)))


if __name__ == "__main__":
    main()
