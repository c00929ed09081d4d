# torch.accelerator.device_index, as vLLM launches its kernels in.
# run: kernbench torchrun {file}
# expect: cuda \d+
# expect: tensor\(\[2\., 2\.\], device='cuda:0'\)

import torch

print(torch.accelerator.current_accelerator(), torch.accelerator.device_count())
with torch.accelerator.device_index(0):
    print(torch.ones(2, device="cuda") * 2)
