"""PyTorch's element types as kernbench's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernbench import dtypes
from kernbench.dtypes import DType


@dataclass(frozen=True, slots=True)
class OtherElement:
    """An element type that kernels cannot compute with; collectives move it all the same."""

    name: str
    itemsize: int


@lru_cache(maxsize=64)
def kernel_dtype(dtype: torch.dtype) -> DType | None:
    """Return the dtype as kernels name it, None if they do not have it."""
    name = str(dtype).removeprefix("torch.")
    return next((dtype for dtype in dtypes.ALL if dtype.name == name), None)


@lru_cache(maxsize=64)
def element_type(dtype: torch.dtype) -> DType | OtherElement:
    """Return the element type of a message."""
    result = kernel_dtype(dtype)
    return (
        OtherElement(str(dtype).removeprefix("torch."), dtype.itemsize)
        if result is None
        else result
    )
