"""A library that registers operators when it is imported: the package kernbench_gems of a test."""

import torch

owner = torch.library.Library("kernbench_gems", "DEF")
owner.define("plus(Tensor x) -> Tensor")
owner.impl("plus", lambda x: x + 100, "CUDA")
for_aten = torch.library.Library("aten", "IMPL")


class use_gems:
    def __enter__(self):
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl("abs", lambda x: x * 3, "CUDA")

    def __exit__(self, *error):
        del self.library


@torch.library.custom_op("kernbench_gems::custom", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return x + 200
