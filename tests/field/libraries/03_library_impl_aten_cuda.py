# A library replaces an operator of aten for CUDA, as FlagGems does.
# run: kernbench torchrun {file}
# expect: mine was called
# expect: tensor\(\[42\., 42\., 42\.\]\)

import torch


def mine(x):
    print("mine was called")
    return torch.full_like(x, 42.0)


library = torch.library.Library("aten", "IMPL")
library.impl("abs", mine, "CUDA")
print(torch.abs(torch.ones(3, device="cuda")).cpu())
