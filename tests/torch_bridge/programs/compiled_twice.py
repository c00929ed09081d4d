"""Run compiled.py without the compiler and with it, and look at the compiler after it.

python -m tests.torch_bridge.programs.compiled_twice
"""

import warnings

from tests.torch_bridge.running import simulated

warnings.simplefilter("ignore")
simulated("compiled.py")
simulated("compiled.py", "asks")

import torch  # noqa: E402
import torch._dynamo.eval_frame  # noqa: E402

assert torch._dynamo.eval_frame.OptimizedModule.__module__ == "torch._dynamo.eval_frame"
assert torch.compile.__module__ == "torch"
