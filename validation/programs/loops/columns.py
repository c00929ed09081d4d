"""Convolutions of three dims as PyTorch 2.9 computes them in half precision: by columns.

It leaves cuDNN's, which were broken in the release that it ships with, out where images are planes
(pytorch/pytorch, aten/src/ATen/native/Convolution.cpp: "broken on cuDNN 9.8 - 9.14"), and takes one
image after another: its windows become the columns of a matrix, which is multiplied.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
from torch import Tensor, nn


def use_columns(model: nn.Module) -> None:
    """Let a model's convolutions of three dims be computed so."""
    for each in model.modules():
        if isinstance(each, nn.Conv3d) and set(each.kernel_size) != {1}:
            each.forward = partial(by_columns, each)


def by_columns(conv: nn.Conv3d, x: Tensor) -> Tensor:
    """Return what a convolution of one group, without dilation, makes of images."""
    weight, bias = conv.weight, conv.bias
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    rows = weight.reshape(weight.shape[0], -1)
    pads = [pad for each in reversed(conv.padding) for pad in (int(each), int(each))]
    made = []
    for image in F.pad(x, pads):
        windows = image
        for dim, (size, step) in enumerate(zip(conv.kernel_size, conv.stride, strict=True), 1):
            windows = windows.unfold(dim, size, step)
        sizes = windows.shape[1:4]
        columns = windows.permute(0, 4, 5, 6, 1, 2, 3).reshape(rows.shape[1], -1)
        found = rows @ columns if bias is None else torch.addmm(bias[:, None], rows, columns)
        made.append(found.view(-1, *sizes))
    return torch.stack(made)
