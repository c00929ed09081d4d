"""What a kernel says of the tensor descriptors that it makes, kept in its TTIR.

Triton turns descriptors into pointers before TTIR is done, and with them goes what TMA demands of
their base and their strides. So while a run is active each leaves a mark behind: an operation of
its base and strides that has no other meaning (``kernel_ir`` knows it by its text).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.language.semantic import TritonSemantic

from kernbench.kernel_ir import DESCRIPTOR_MARK
from kernbench.triton_backend.compiler import BACKEND_NAME
from kernbench.triton_backend.replaced import ReplacedAttributes

_MAKE: Callable[..., Any] = TritonSemantic.make_tensor_descriptor


def _make(self: Any, base: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a descriptor, as Triton does."""
    result = _MAKE(self, base, *args, **kwargs)
    if getattr(self.builder.options, "backend_name", "") == BACKEND_NAME:
        value = [base.handle, *(stride.handle for stride in result.strides)]
        self.builder.create_print(DESCRIPTOR_MARK, False, value, [False] * len(value))
    return result


REPLACED = ReplacedAttributes(TritonSemantic, make_tensor_descriptor=_make)
"""Make descriptors leave their mark."""
