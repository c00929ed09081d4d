"""Runs without_compiler.py in simulated processes, and looks at PyTorch's compiler afterwards.

python compiler_after_a_run.py [asks]
"""

import sys
from collections.abc import Callable

import torch

from kernbench.torch_bridge.replaced.without_compiler import _Compiler
from tests.torch_bridge.running import simulated

simulated("without_compiler.py", *sys.argv[1:], nprocs=2)
import torch._dynamo.eval_frame  # noqa: E402

assert torch._dynamo.__file__
adds = torch.optim.Optimizer.add_param_group.__wrapped__
asked = getattr(adds, "__dynamo_disable", None)
assert asked is not adds
torch.optim.SGD([torch.zeros(1)])
assert adds.__dynamo_disable is not adds


def calls_of(function: Callable[[], object]) -> int:
    """Return how many calls of Python a call of a function takes."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    function()
    sys.setprofile(None)
    return events.count("call")


# What stands in calls as much Python around a function that it disables.
stand_in = _Compiler(None)
assert calls_of(stand_in.disable(int)) == calls_of(int)
disabled = torch._dynamo.disable(lambda: None)
assert calls_of(stand_in.disable(lambda: None)) == calls_of(disabled) > calls_of(lambda: None)
