"""Calls what PyTorch's C++ warns of, and writes the lines that the warnings name.

python warned_lines.py FILE DEVICE
"""

import json
import sys
import warnings
from pathlib import Path

import torch

file, device = sys.argv[1:]


def called():
    index = torch.tensor([0], device=device)
    return torch.zeros(3, device=device).index_reduce(
        0, index, torch.ones(1, device=device), "mean"
    )


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.ones(0, 3, device=device).std(0)
    called()
    torch.sparse_coo_tensor([[0], [0]], [1.0], (1, 1), device=device)
    warnings.warn("the program's", stacklevel=1)
lines = [(Path(item.filename).name, item.lineno, str(item.message)[:20]) for item in caught]
Path(file).write_text(json.dumps(lines))
