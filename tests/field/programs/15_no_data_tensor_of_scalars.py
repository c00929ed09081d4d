# torch.tensor of device scalars, without data: Megatron's gradient norm.
# run: kernbench torchrun --no-data {file}
# expect: (?s)0\.0.*0\.0

import torch

x = torch.randn(4096, 4096, device="cuda")
norms = [torch.norm(x), torch.norm(x)]
print(float(norms[0]))
print(torch.norm(torch.tensor(norms)).item())
