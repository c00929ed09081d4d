# torch.compile(module) keeps the module in _orig_mod.
# run: kernbench torchrun {file}
# expect: \['_orig_mod.weight', '_orig_mod.bias'\]
# expect: ^Linear$

import torch

model = torch.compile(torch.nn.Linear(2, 2).cuda())
print(list(model.state_dict()))
print(type(model._orig_mod).__name__)
