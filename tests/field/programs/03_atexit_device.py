# A handler at exit that uses the device, as nano-vllm's engine does.
# run: kernbench torchrun {file}
# expect: exit: 4\.0

import atexit

import torch

x = torch.ones(4, device="cuda")


def bye():
    torch.cuda.synchronize()
    print("exit:", x.sum().item())


atexit.register(bye)
