# After a seed, every draw on a device is the CPU's.
# run: kernbench torchrun {file}
# expect: True True

import torch

torch.manual_seed(0)
a = torch.nn.Linear(16, 64, device="cuda")
b = torch.nn.Linear(64, 16, device="cuda")
torch.manual_seed(0)
c = torch.nn.Linear(16, 64)
d = torch.nn.Linear(64, 16)
print(torch.equal(a.weight.cpu(), c.weight), torch.equal(b.weight.cpu(), d.weight))
