"""Programs of which something cannot be compiled.

python inductor_failing.py CASE
"""

import os
import sys

import torch


def on_the_host() -> None:
    """Inductor wants a C++ compiler for what is computed there."""
    torch.compile(lambda x: x.sin() + 1)(torch.ones(40))


def one_rank_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        print("between two graphs")
        return x + 1

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    function = torch.compile(broken if rank else torch.sin, fullgraph=True)
    function(torch.ones(3, device="cuda"))


globals()[sys.argv[1]]()
