"""How a kernel of Transformer Engine runs: a definition, what it writes, and how long it takes.

The enumerations are those of C++ that its Python and its extension exchange, of Transformer Engine
2.20 (``enumerations.yaml``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernbench.inputs import shipped_yaml
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.of_all import library_of_all
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import as_stream
from kernbench.torch_bridge.replaced.package_kernels.launching import run_kernel

NAMESPACE = "transformer_engine"
_LIBRARIES: list[Any] = []


def install(patches: Patches) -> None:
    """Open the namespace in which kernels have their names."""
    library = library_of_all(NAMESPACE, "FRAGMENT")
    _LIBRARIES.append(library)
    patches.on_close(_named.cache_clear)
    patches.on_close(_LIBRARIES.clear)
    patches.on_close(library._destroy)


@cache
def _named(name: str) -> Any:
    """Return the overload by whose name a kernel is known in reports."""
    _LIBRARIES[0].define(f"{name}(Tensor[] x) -> ()")
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def launch(
    name: str,
    compute: Callable[..., None],
    value: Sequence[Any],
    written: Sequence[Tensor],
    timing: Callable[[Any], Callable[[int], Any]] | None = None,
    *,
    over: Sequence[Tensor] = (),
) -> None:
    """Run ``compute(*value)`` as one kernel, which writes ``written``, some of ``value``.

    ``timing`` takes the kernel's overload and returns what says how long it takes on a SIP; without
    it, bytes are streamed: those of tensors in ``value``. ``over`` are those of ``written`` that
    are read, too.
    """
    func = _named(name)
    current().session.operators[f"{NAMESPACE}.{name}"] = None
    if not any(tensor.numel() for tensor in written):
        return
    if timing is None:
        held = {id(tensor) for tensor in written}
        read = [item for item in value if id(item) not in held]
        takes = as_stream(func, (*read, *over), written)
    else:
        takes = timing(func)
    run_kernel(func, compute, tuple(value), written, takes)


def is_plain(x: Any) -> bool:
    """Return whether a value is a tensor of PyTorch's own class."""
    return type(x) in (Tensor, torch.nn.Parameter)


def refuse_quantized(name: str, *value: Any) -> None:
    """Refuse operands that are quantized, and quantizers of results.

    Raises:
        UnsupportedTorchError: One is not None, or no plain tensor.
    """
    for item in value:
        if item is not None and not is_plain(item):
            raise UnsupportedTorchError(
                f"{NAMESPACE}.{name} with a {type(item).__name__}: kernbench defines this kernel "
                "in float32, float16, bfloat16, or FP8 of one scale (DelayedScaling, "
                "Float8CurrentScaling) where it has it; choose such a recipe"
            )


_DTYPES = {
    "kByte": (0, torch.uint8),
    "kInt32": (2, torch.int32),
    "kFloat32": (4, torch.float32),
    "kFloat16": (5, torch.float16),
    "kBFloat16": (6, torch.bfloat16),
    "kFloat8E4M3": (7, torch.float8_e4m3fn),
    "kFloat8E5M2": (8, torch.float8_e5m2),
    "kFloat4E2M1": (10, torch.float4_e2m1fn_x2),
}
_OF_NUMBERS = dict(_DTYPES.values())
_OF_CXX: dict[str, Any] = {
    "DType": {name: number for name, (number, _) in _DTYPES.items()},
    **shipped_yaml("kernbench.torch_bridge.replaced.transformer_engine", "enumerations.yaml"),
}
ENUMERATIONS: dict[str, Any] = {
    name: IntEnum(name, members, module="transformer_engine_torch", start=0)
    for name, members in _OF_CXX.items()
}
"""The enumerations of the extension module, by name."""


def name_of(enumeration: str, number: Any) -> str:
    """Return the name of a member, without the prefix of C++."""
    return str(ENUMERATIONS[enumeration](int(number)).name).removeprefix("NVTE_")


def torch_dtype(number: Any, otherwise: torch.dtype) -> torch.dtype:
    """Return PyTorch's dtype of a ``DType``; ``otherwise`` for None."""
    return otherwise if number is None else _OF_NUMBERS[int(number)]
