"""Every operation of PyTorch's own database: compiled for a device as in eager mode on it.

arguments: N and FIRST, for one operation in N; how many of those to leave out, as they were run
before; the file to which outcomes are added, one JSON list (case, outcome, reason) a line.

Run it by tests/conformance/run_compiled.py, which goes on where a process ends.
"""

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from operations import NOT_COMPARABLE, Call, on, results, samples
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

SAMPLES = 2
# Of the largest number in a result. Kernels that are fused round less often than eager ones.
TOLERANCES = {"float32": 1e-4, "autocast bf16": 4e-2}
SMALL = 1e-2
"""Below that, numbers are what is left of larger ones; inputs are around 1."""
UNWRITTEN = "empty"


def main() -> None:
    """Compare, and write an outcome before and after each case, as a case may end the process."""
    warnings.simplefilter("ignore")
    every, first, before = map(int, sys.argv[1:4])
    path = Path(sys.argv[4])
    torch.compile(lambda x: x)  # imports the compiler
    torch._inductor.config.fallback_random = True
    for op in op_db[first::every][before:]:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        with path.open("a") as file:
            for mode in TOLERANCES:
                for index, (call, backward) in enumerate(calls(op, name)):
                    case = f"{mode}::{name}[{index} {'backward' if backward else 'forward'}]"
                    file.write(json.dumps([case, "failed", "the process ended"]) + "\n")
                    file.flush()
                    function = of(op.op, backward=backward)
                    file.write(json.dumps([case, *outcome(function, call, mode)]) + "\n")
                    file.flush()
            file.write(json.dumps(["end", name, ""]) + "\n")
    with path.open("a") as file:
        file.write(json.dumps(["all", "", ""]) + "\n")


def calls(op: Any, name: str) -> list[tuple[Call, bool]]:
    if torch.float32 not in op.dtypes or name in NOT_COMPARABLE or UNWRITTEN in name:
        return []
    result = [(call, False) for call in samples(op, requires_grad=False)[:SAMPLES]]
    if op.supports_autograd and "sparse" not in name:
        result += [(call, True) for call in samples(op, requires_grad=True)[:SAMPLES]]
    return result


def of(op: Callable[..., Any], *, backward: bool) -> Callable[..., Any]:
    """Return what calls an operation, and compiles its forward part if that is asked for."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    def call(value: Call, *, compiled: bool) -> Any:
        torch.manual_seed(0)
        function = torch.compile(forward) if compiled else forward
        return gradients(function, value) if backward else results(function, value)

    return call


def gradients(function: Callable[..., Any], call: Call) -> Any:
    """Return the gradients of what weighs each number of the results in its own way."""
    outputs, inputs = (
        [leaf for leaf in tree_leaves(some) if isinstance(leaf, torch.Tensor)]
        for some in (results(function, call), call)
    )
    outputs = [output for output in outputs if output.requires_grad and output.is_floating_point()]
    if not outputs:
        return None
    weights = [
        torch.arange(1, output.numel() + 1).cos().view(output.shape).to(output)
        for output in outputs
    ]
    inputs = [item for item in inputs if item.requires_grad]
    return outputs, torch.autograd.grad(outputs, inputs, weights, allow_unused=True)


def outcome(function: Callable[..., Any], call: Call, mode: str) -> tuple[str, str]:
    """Return what became of a case, and why."""
    plain, cast = nullcontext(), torch.autocast("cuda", torch.bfloat16)
    try:
        expected = on("cpu", function(on("cuda", call), compiled=False))
        if mode != "float32":
            with cast:
                under_cast = on("cpu", function(on("cuda", call), compiled=False))
            if not different(under_cast, expected, 0):
                return "no case", "autocast changes nothing"
            expected = under_cast
    except Exception:  # What eager mode refuses is not asked of the compiler.
        return "skipped", "eager mode refuses it"
    if expected is None:
        return "skipped", "it has no gradients"
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        with plain if mode == "float32" else cast:
            result = on("cpu", function(on("cuda", call), compiled=True))
    except Exception as error:
        return "failed", f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    if not torch._dynamo.utils.counters["stats"]["unique_graphs"]:
        return "skipped", "the compiler leaves it to eager mode"
    why = different(result, expected, TOLERANCES[mode])
    return ("failed", why) if why else ("passed", "")


def different(value: Any, expected: Any, tolerance: float) -> str:
    """Return how results differ, or nothing."""
    ours, theirs = tree_leaves(value), tree_leaves(expected)
    if len(ours) != len(theirs):
        return "another number of results"
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            if type(one) is not type(other) or (one != other and other == other):
                return "another result that is no tensor"
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"results of {one.dtype}, not {other.dtype}, or of another shape"
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        if not other.dtype.is_floating_point and not other.dtype.is_complex:
            near = torch.equal(one, other)
        else:
            numbers = other[other.isfinite()].abs()
            largest = numbers.max().item() if numbers.numel() else 0.0
            most = tolerance * max(largest, SMALL)
            near = torch.allclose(one, other, rtol=0, atol=most, equal_nan=True)
        if not near:
            return "other values"
    return ""


if __name__ == "__main__":
    main()
