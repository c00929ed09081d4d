"""The hook through which tensors reach the Triton kernels of ``kernbench.ops``.

``ops`` lies above the runtime, so the runtime does not import it: it loads it by name when an
operator is first used, and ``ops`` registers itself here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

from kernbench.errors import InternalError, MissingNameError, nearest

if TYPE_CHECKING:
    from kernbench.dtypes import DType
    from kernbench.runtime_api.tensors.tensor import Tensor


class Operators(Protocol):
    """What ``kernbench.ops`` offers to tensors. Every function returns a new tensor."""

    TENSOR_METHODS: Mapping[str, Callable[..., Any]]
    """What tensors have beside their own methods, by name; the tensor is the first argument."""
    TORCH_FUNCTIONS: Mapping[str, Callable[..., Any]]
    """What a run's ``torch`` has beside its own functions, by name."""

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

    def pow(self, a: Any, b: Any) -> Tensor:
        """Return ``a ** b``."""

    def abs(self, a: Tensor) -> Tensor:
        """Return the magnitudes."""

    def cast(self, a: Tensor, dtype: DType) -> Tensor:
        """Return ``a`` in another element type."""

    def copy_strided(self, source: Tensor, target: Tensor) -> None:
        """Write ``source`` into ``target``: same shape and element type, any strides."""


PYTORCH = "programs that need PyTorch's own are files that import it: kernbench run FILE"
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


def binary(name: str) -> Callable[[Tensor, Any], Tensor]:
    """Return the method of a Python operator: ``operators().NAME(self, other)``."""

    def method(self: Tensor, other: Any) -> Tensor:
        result: Tensor = getattr(operators(), name)(self, other)
        return result

    return method


def reflected(name: str) -> Callable[[Tensor, Any], Tensor]:
    """Return the method of a Python operator whose left operand is no tensor."""

    def method(self: Tensor, other: Any) -> Tensor:
        result: Tensor = getattr(operators(), name)(other, self)
        return result

    return method


def unary(name: str) -> Callable[[Tensor], Tensor]:
    """Return the method of a Python operator with one operand."""

    def method(self: Tensor) -> Tensor:
        result: Tensor = getattr(operators(), name)(self)
        return result

    return method


def method_of(tensor: Tensor, name: str) -> Any:
    """Return what ``tensor.NAME`` is for a name that the class does not have.

    Raises:
        MissingNameError: Tensors have no such method; says which they have.
    """
    if name.startswith("_"):
        raise AttributeError(name=name, obj=tensor)
    methods = operators().TENSOR_METHODS
    if name in methods:
        return MethodType(methods[name], tensor)
    raise missing("a tensor of a run", name, dir(tensor))


def missing(owner: str, name: str, known: Iterable[str]) -> MissingNameError:
    """Return the error for a name that kernbench's own torch or its tensors do not have."""
    shown = sorted(name for name in known if not name.startswith("_"))
    hint = nearest(name, shown)
    if hint.startswith("known"):
        hint = f"it has {', '.join(shown)}"
    return MissingNameError(f"{owner} is kernbench's own, and has no {name}; {hint}; {PYTORCH}")
