"""Which structure each attention kernel has: a file per GPU architecture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from kernbench.inputs import parse_yaml
from kernbench.library_kernels.attention.forward import FlashKernel
from kernbench.library_kernels.attention.splits import Splits

CUDNN_FIRST = (90, 100)
"""Compute capabilities on which PyTorch asks cuDNN before other kernels for attention."""


@cache
def attention_kernels(architecture: str) -> Mapping[str, FlashKernel]:
    """Return the kernels of an architecture by name; none where nobody described any.

    >>> attention_kernels("sm80")["flash2_forward"].block_m
    128
    """
    folder: Any = resources.files("kernbench.library_kernels") / "attention_kernels"
    return described_kernels(folder / f"{architecture}.yaml")


def variant_names(name: str, is_narrow: bool, has_window: bool) -> tuple[str, ...]:
    """Return what a kernel may be called for 8-bit keys and for a window, the nearest name first.

    >>> variant_names("flash3_paged", True, False)
    ('flash3_paged_fp8', 'flash3_paged')
    """
    narrow = (f"{name}_fp8", name) if is_narrow else (name,)
    return (*(f"{item}_window" for item in narrow if has_window), *narrow)


def described_kernels(file: Any) -> Mapping[str, FlashKernel]:
    """Return the kernels that a file describes by name; none where there is no such file."""
    if not file.is_file():
        return MappingProxyType({})
    text = file.read_text(encoding="utf-8")
    described: dict[str, dict[str, Any]] = parse_yaml(text, file.name, is_shipped=True)
    return MappingProxyType({name: _kernel(name, value) for name, value in described.items()})


def _kernel(name: str, described: Mapping[str, Any]) -> FlashKernel:
    values = dict(described)
    splits = Splits(values.pop("splits", Splits.NONE))
    return FlashKernel(name=name, splits=splits, **values)
