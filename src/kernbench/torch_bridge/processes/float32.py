"""The precision of float32 products that a process requests (ADR-0117); it affects their time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

_get = torch._C._get_fp32_precision_getter
_set = torch._C._set_fp32_precision_setter
_SETTERS = (
    "_set_float32_matmul_precision",
    "_set_cublas_allow_tf32",
    "_set_cudnn_allow_tf32",
    "_set_fp32_precision_setter",
)
_KEPT = (
    ("generic", "all"),
    *(("cuda", each) for each in ("all", "matmul", "conv", "rnn")),
    *(("mkldnn", each) for each in ("all", "matmul", "conv", "rnn")),
)


@dataclass(frozen=True, slots=True)
class Float32:
    """The ``input_precision`` of float32 products, by kind of operation."""

    matmul: str = "ieee"
    convolution: str = "tf32"
    recurrent: str = "tf32"


def asked() -> Float32:
    """Return the precision set in PyTorch."""
    return Float32(*("tf32" if _get("cuda", each) == "tf32" else "ieee" for each in _OPERATIONS))


_OPERATIONS = ("matmul", "conv", "rnn")


def install(patches: Patches) -> None:
    """Track the precision that each process requests, and restore PyTorch's settings at the end."""
    before = []
    for each in _KEPT:
        # Not every release has all of these functions.
        with suppress(RuntimeError):
            before.append((each, _get(*each)))
    patches.on_close(_restore, before)
    patches.on_close(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    for name in _SETTERS:
        patches.set(torch._C, name, _noticed(getattr(torch._C, name)))
    # The module holds a reference to C++'s own function.
    of_cudnn = vars(type(torch.backends.cudnn))["allow_tf32"]
    patches.set(of_cudnn, "setter", _noticed(of_cudnn.setter))


def _noticed(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def put(*args: Any) -> Any:
        found = original(*args)
        process = HERE.process
        if process is not None:
            process.price(asked())
        return found

    return put


def _restore(values: list[tuple[tuple[str, str], str]]) -> None:
    for each, value in values:
        _set(*each, value)
