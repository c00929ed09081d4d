"""Runs without_compiler.py in simulated processes, and looks at PyTorch's compiler afterwards.

python compiler_after_a_run.py [asks]
"""

import sys

import torch

from tests.torch_bridge.running import simulated

simulated("without_compiler.py", *sys.argv[1:], nprocs=2)
import torch._dynamo.eval_frame  # noqa: E402

assert torch._dynamo.__file__
adds = torch.optim.Optimizer.add_param_group.__wrapped__
asked = getattr(adds, "__dynamo_disable", None)
assert asked is not adds
torch.optim.SGD([torch.zeros(1)])
assert adds.__dynamo_disable is not adds
