"""Run a captured, compiled program on two machines in turns, in one process: print its times.

python -m tests.torch_bridge.programs.captured_in_turns
"""

import sys
import warnings

if len(sys.argv) > 1:
    import torch

    torch.set_grad_enabled(False)
    # Its code is PyTorch's own, which is there for every run of this process.
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
    # Products take most of the time, whose rates differ by a factor of 2.4.
    x = torch.empty(4096, 512, device="cuda")
    compiled = torch.compile(model, mode="reduce-overhead")
    for _ in range(3):
        compiled(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    compiled(x)
    end.record()
    torch.cuda.synchronize()
    print("took", begin.elapsed_time(end), flush=True)
elif __name__ == "__main__":
    from tests.torch_bridge.running import simulated

    warnings.simplefilter("ignore")
    for machine in ("a100-sxm-80g:1", "t4:1", "a100-sxm-80g:1"):
        simulated("captured_in_turns.py", "program", machine=machine, data=False)
