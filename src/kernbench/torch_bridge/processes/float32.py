"""The precision of products that a process requests (ADR-0064); it affects their time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

_get = torch._C._get_fp32_precision_getter
_SETTERS = (
    "_set_float32_matmul_precision",
    "_set_cublas_allow_tf32",
    "_set_cudnn_allow_tf32",
    "_set_fp32_precision_setter",
)
_SUMS = {"fp16": "float16", "bf16": "bfloat16"}
"""Names in PyTorch's switches, and of dtypes."""
_REDUCED = "_set_cublas_allow_{}_reduced_precision_reduction"
OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""The variable by which NVIDIA's libraries take TF32 for all products of float32, or for none."""


@dataclass(frozen=True, slots=True)
class Float32:
    """The ``input_precision`` of float32 products by kind of operation, and the sums of others."""

    matmul: str = "ieee"
    convolution: str = "tf32"
    recurrent: str = "tf32"
    wide_sums: frozenset[str] = frozenset()
    """Dtypes whose products, where K is cut, may not add parts in less than float32."""
    whole_sums: frozenset[str] = frozenset()
    """Dtypes for whose products K may not be cut."""


def asked() -> Float32:
    """Return the precision set in PyTorch."""
    matmul, convolution, recurrent = (
        "tf32" if _get("cuda", operation) == "tf32" else "ieee" for operation in _OPERATIONS
    )
    sums = {name: _reduced(item) for item, name in _SUMS.items()}
    float32 = Float32(
        matmul=matmul,
        convolution=convolution,
        recurrent=recurrent,
        wide_sums=frozenset(name for name, (reduced, _) in sums.items() if not reduced),
        whole_sums=frozenset(name for name, (_, split) in sums.items() if not split),
    )
    return overridden(float32, os.environ)


def overridden(asked_for: Float32, variables: Mapping[str, str]) -> Float32:
    """Return a precision as NVIDIA's libraries change it by a variable of the process."""
    said = variables.get(OVERRIDE)
    if said not in ("0", "1"):
        return asked_for
    text = "ieee" if said == "0" else "tf32"
    return replace(asked_for, matmul=text, convolution=text, recurrent=text)


def _reduced(name: str) -> tuple[bool, bool]:
    """Return whether sums in a dtype may be reduced in it, and whether K may be cut."""
    result = getattr(torch._C, _REDUCED.replace("_set", "_get").format(name))()
    # Releases before 2.9 give only the first.
    return result if isinstance(result, tuple) else (result, True)


_OPERATIONS = ("matmul", "conv", "rnn")


def install(patches: Patches) -> None:
    """Track the precision that each process requests."""
    reducing = [_REDUCED.format(name) for name in _SUMS]
    for name in (*_SETTERS, *reducing):
        patches.set(torch._C, name, _noticed(getattr(torch._C, name)))
    # The module holds a reference to C++'s own function.
    of_cudnn = vars(type(torch.backends.cudnn))["allow_tf32"]
    patches.set(of_cudnn, "setter", _noticed(of_cudnn.setter))


def _noticed(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def put(*args: Any) -> Any:
        result = original(*args)
        process = HERE.process
        if process is not None:
            process.price(asked())
        return result

    return put
