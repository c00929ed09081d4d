"""The hook through which tensors reach the Triton kernels of ``kernbench.ops``.

``ops`` lies above the runtime, so the runtime does not import it: it loads it by name when an
operator is first used, and ``ops`` registers itself here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from kernbench.errors import InternalError

if TYPE_CHECKING:
    from kernbench.dtypes import DType
    from kernbench.runtime_api.tensors.tensor import Tensor


class Operators(Protocol):
    """What ``kernbench.ops`` offers to tensors. Every function returns a new tensor."""

    def add(self, a: Any, b: Any) -> Tensor:
        """Return ``a + b`` with broadcasting; one of them may be a number."""

    def sub(self, a: Any, b: Any) -> Tensor:
        """Return ``a - b``."""

    def mul(self, a: Any, b: Any) -> Tensor:
        """Return ``a * b``."""

    def div(self, a: Any, b: Any) -> Tensor:
        """Return ``a / b``."""

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a @ b``."""

    def lt(self, a: Any, b: Any) -> Tensor:
        """Return ``a < b``, a boolean per element."""

    def le(self, a: Any, b: Any) -> Tensor:
        """Return ``a <= b``, a boolean per element."""

    def gt(self, a: Any, b: Any) -> Tensor:
        """Return ``a > b``, a boolean per element."""

    def ge(self, a: Any, b: Any) -> Tensor:
        """Return ``a >= b``, a boolean per element."""

    def eq(self, a: Any, b: Any) -> Tensor:
        """Return ``a == b``, a boolean per element."""

    def ne(self, a: Any, b: Any) -> Tensor:
        """Return ``a != b``, a boolean per element."""

    def cast(self, a: Tensor, dtype: DType) -> Tensor:
        """Return ``a`` in another element type."""

    def copy_strided(self, source: Tensor, target: Tensor) -> None:
        """Write ``source`` into ``target``: same shape and element type, any strides."""


_registered: list[Operators] = []


def register_operators(operators: Operators) -> None:
    """Register what ``+``, ``@`` and the like call, once per process.

    Raises:
        InternalError: Something is registered already.
    """
    if _registered and _registered[0] is not operators:
        raise InternalError("the operators of tensors are registered already")
    _registered[:] = [operators]


def operators() -> Operators:
    """Return the registered operators, importing ``kernbench.ops`` first if necessary."""
    if not _registered:
        importlib.import_module("kernbench.ops")
        if not _registered:
            raise InternalError("kernbench.ops did not register its operators")
    return _registered[0]
