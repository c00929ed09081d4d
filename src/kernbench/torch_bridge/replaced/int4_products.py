"""Products with weights of four bits, which PyTorch packs for GPUs in an order of their own.

Here packed weights have the shape that they have on a GPU, and the elements in the order of the
matrix: only the two operations read them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.of_all import library_of_all

_INNER_TILES = (2, 4, 8)
_GROUPS = (32, 64, 128, 256)
_ROWS, _COLUMNS = 8, 16
"""The shape of a tile of the packed matrix; a row of tiles has so many columns per inner tile."""
_ZERO = 8
"""The integer that is 0, before the group's own zero is added."""


def install(patches: Patches) -> None:
    """Implement them on the CPU, with shape functions for runs without data."""
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    for key in ("CPU", "Meta"):
        library.impl("_convert_weight_to_int4pack", _packed, key, allow_override=True)
        library.impl("_weight_int4pack_mm", _product, key, allow_override=True)


def _packed(weight: Tensor, inner_tiles: int) -> Tensor:
    """Return a matrix ``(n, k / 2)`` of bytes, two elements in each, as a GPU's packed weights."""
    if weight.dtype is not torch.uint8 or weight.dim() != 2:
        raise RuntimeError(
            f"_convert_weight_to_int4pack: expected a matrix of uint8 with two elements in a byte, "
            f"but got {weight.dtype} of shape {tuple(weight.shape)}"
        )
    n, k = weight.shape[0], 2 * weight.shape[1]
    if inner_tiles not in _INNER_TILES:
        raise RuntimeError(f"innerKTiles must be one of {_INNER_TILES}, but got {inner_tiles}")
    columns = inner_tiles * _COLUMNS
    if n % _ROWS or k % columns:
        raise RuntimeError(
            f"a weight of {n} x {k} does not divide into tiles of {_ROWS} x {columns}"
        )
    shape = (n // _ROWS, k // columns, 32, inner_tiles // 2)
    if weight.is_meta:
        return weight.new_empty(shape, dtype=torch.int32)
    return weight.contiguous().view(torch.int32).reshape(shape).clone()


def _product(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """Return ``x @ weight.T``, with a scale and a zero for each group of a row's elements."""
    n = packed.shape[0] * _ROWS
    k = packed.shape[1] * packed.shape[3] * 2 * _COLUMNS
    if group not in _GROUPS or x.dim() != 2 or x.shape[1] != k:
        raise RuntimeError(
            f"_weight_int4pack_mm: expected a matrix of {k} columns and groups of one of {_GROUPS},"
            f" but got {tuple(x.shape)} and {group}"
        )
    if tuple(scales_and_zeros.shape) != (k // group, n, 2):
        raise RuntimeError(
            f"_weight_int4pack_mm: expected scales and zeros of shape {(k // group, n, 2)}, but "
            f"got {tuple(scales_and_zeros.shape)}"
        )
    if x.is_meta:
        return x.new_empty(x.shape[0], n)
    pairs = packed.reshape(n, k // 8).view(torch.uint8)
    view = torch.stack((pairs >> 4, pairs & 15), -1).view(n, k // group, group)
    scales, zeros = scales_and_zeros.transpose(0, 1).float().unbind(-1)
    weight = (view.float() - _ZERO) * scales.unsqueeze(-1) + zeros.unsqueeze(-1)
    # Rounded as the kernel holds it, then summed in float32.
    return (x.float() @ weight.view(n, k).to(x.dtype).float().T).to(x.dtype)
