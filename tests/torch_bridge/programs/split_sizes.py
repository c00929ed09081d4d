"""Split sizes of all_to_all_single: what PyTorch takes for a list of whole numbers.

python split_sizes.py DEVICE FOLDER
"""

import sys

import numpy as np
import torch
import torch.distributed as dist

device, folder = sys.argv[1:]
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank = dist.get_rank()
SENT = [[1, 3], [4, 0]]
TAKEN = [list(pair) for pair in zip(*SENT, strict=True)]
FORMS = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "int32": lambda sizes: np.array(sizes, np.int32),
    "uint8": lambda sizes: np.array(sizes, np.uint8),
    "objects": lambda sizes: np.array(sizes, object),
    "row": lambda sizes: np.array([sizes, sizes])[1],
    "column": lambda sizes: np.array([sizes, sizes]).T[:, 0],
    "numpy scalars": lambda sizes: list(map(np.int64, sizes)),
    "tensors": lambda sizes: list(map(torch.tensor, sizes)),
    "tensors of the device": lambda sizes: [torch.tensor(size, device=device) for size in sizes],
    "size": torch.Size,
    "generator": lambda sizes: (size for size in sizes),
    "keys": lambda sizes: dict.fromkeys(sizes).keys(),
    # Refused.
    "tensor": torch.tensor,
    "floats": lambda sizes: list(map(float, sizes)),
    "array of floats": lambda sizes: np.array(sizes, float),
    "rows": lambda sizes: np.array([sizes, sizes]),
    "dict": dict.fromkeys,
    "text": lambda sizes: "".join(map(str, sizes)),
}
result = {}
for name, form in FORMS.items():
    x = torch.arange(4.0, device=device) + 10 * rank
    taken = torch.zeros(sum(TAKEN[rank]), device=device)
    try:
        dist.all_to_all_single(taken, x, form(TAKEN[rank]), form(SENT[rank]))
        result[name] = taken.tolist()
    except TypeError:
        result[name] = "TypeError"
even = np.array([], int)
dist.all_to_all_single(x, x.clone(), even, even)
result["none"] = x.tolist()
torch.save(result, f"{folder}/{device}{rank}.pt")
dist.destroy_process_group()
