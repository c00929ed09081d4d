# Pinned memory says that it is.
# run: kernbench torchrun {file}
# expect: True True True

import torch

x = torch.ones(4)
print(
    x.pin_memory().is_pinned(),
    torch.empty(4, pin_memory=True).is_pinned(),
    x.cuda().to("cpu", non_blocking=True).pin_memory().is_pinned(),
)
