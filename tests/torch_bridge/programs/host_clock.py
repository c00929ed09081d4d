"""Small operations on a device.

python host_clock.py [read] reads the result.
"""

import sys

import torch

x = torch.zeros(64, 64, device="cuda")
for _ in range(9):
    x.add_(1)
if sys.argv[1:]:
    assert x[0, 0].item() == 9
