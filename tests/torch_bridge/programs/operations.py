"""Every operation of PyTorch's own database: the same on a device as on the CPU, backward too.

arguments: N for one operation in N, and "graphs" to replay each call as a CUDA graph.
"""

import random
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = 8
# They draw numbers, or show memory that nobody wrote.
RANDOM = ("rand", "dropout", "empty", "normal", "bernoulli", "multinomial", "exponential",
          "geometric", "cauchy", "uniform")  # fmt: skip
# Samples of one are parts of a larger memory, which a copy to a device is without; the other takes
# indices of the host alone.
NOT_COMPARABLE = ("as_strided.partial_views", "tensor_split")
Call = tuple[Any, Any, Any]


def main() -> int:
    """Compare, and return the exit status."""
    warnings.simplefilter("ignore")
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    as_graph = "graphs" in sys.argv[2:]
    forward = backward = 0
    wrong: dict[str, str] = {}
    for op in op_db[random.Random(0).randrange(every) :: every]:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if torch.float32 not in op.dtypes or name in NOT_COMPARABLE:
            continue
        draws = any(word in name for word in RANDOM)
        for call in samples(op, requires_grad=False):
            function = partial(results, op.op)
            forward += compare(function, call, name, wrong, draws=draws, as_graph=as_graph)
        if op.supports_autograd and not draws and "sparse" not in name:
            for call in samples(op, requires_grad=True):
                function = partial(gradients, op.op)
                backward += compare(function, call, name, wrong, as_graph=as_graph)
    for name, why in wrong.items():
        print(f"{name}: {why}")
    print(f"{forward} calls and {backward} backward; {len(wrong)} operations differ")
    return 1 if wrong else 0


def samples(op: Any, *, requires_grad: bool) -> list[Call]:
    try:
        sample_inputs = op.sample_inputs("cpu", torch.float32, requires_grad=requires_grad)
        return [(item.input, item.args, item.kwargs) for item in islice(sample_inputs, SAMPLES)]
    except Exception:  # Some need what this build of PyTorch lacks.
        return []


def on(device: str, values: Any) -> Any:
    def move(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device(device)
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(device).requires_grad_(value.requires_grad)

    return tree_map(move, values)


def results(function: Callable[..., Any], call: Call) -> Any:
    return function(call[0], *call[1], **call[2])


def gradients(function: Callable[..., Any], call: Call) -> Any:
    outputs = [
        leaf
        for leaf in tree_leaves(results(function, call))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()
    ]
    inputs = [
        leaf for leaf in tree_leaves(call) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not outputs:
        return None
    return torch.autograd.grad([output.sum() for output in outputs], inputs, allow_unused=True)


def replayed(function: Callable[[Call], Any], value: Call) -> Any:
    """Return what a graph of a call gives, which must leave the inputs alone until its replay."""
    graph, before = torch.cuda.CUDAGraph(), on("cpu", value)
    with torch.cuda.graph(graph):
        result = function(value)
    pairs = zip(tree_leaves(on("cpu", value)), tree_leaves(before), strict=True)
    for now, then in pairs:
        if isinstance(now, torch.Tensor):
            torch.testing.assert_close(now, then, equal_nan=True)
    graph.replay()
    return result


def compare(
    function: Callable[[Call], Any],
    call: Call,
    name: str,
    wrong: dict[str, str],
    *,
    draws: bool = False,
    as_graph: bool = False,
) -> bool:
    """Return whether there was something to compare; put what differs into ``wrong``."""
    try:
        expected = function(on("cpu", call))
    except Exception:  # What PyTorch refuses is not asked of a device.
        return False
    if expected is None:
        return False
    try:
        value = on("cuda", call)
        result = on("cpu", replayed(function, value) if as_graph else function(value))
        if not draws:
            torch.testing.assert_close(result, on("cpu", expected), equal_nan=True)
    except Exception as error:
        if "of a CUDA graph" in str(error) or "stream is capturing" in str(error):
            return False  # As on a GPU.
        wrong.setdefault(name, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return True


if __name__ == "__main__":
    sys.exit(main())
