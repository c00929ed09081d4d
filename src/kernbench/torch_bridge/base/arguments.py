"""Arguments of what stands in for functions of PyTorch: wrong ones are refused as PyTorch does."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, ParamSpec, SupportsIndex, TypeVar

from kernbench.errors import KernbenchError

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that fails for arguments that are not what its annotations say tell of these.

    Annotations are classes, unions of them and ``Any``. As in PyTorch, ``int`` takes whatever
    Python takes for an index, and ``bool`` whatever is true or not. Arguments are looked at only
    when the function has failed: a call that goes well costs no more.

    Raises:
        TypeError: When it is called; names the function, the argument and what was passed.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError, ValueError) as error:
            wrong = None if isinstance(error, KernbenchError) else _wrong(function, args, kwargs)
            if wrong is None:
                raise
        raise TypeError(wrong)

    return call


def _wrong(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Return what to say of the first argument that is of another class, or None."""
    kinds = _kinds(function)
    values = {**dict(zip(inspect.signature(function).parameters, args, strict=False)), **kwargs}
    for argument, value in values.items():
        kind = kinds.get(argument, object)
        if not isinstance(value, kind):
            name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
            words = f"argument '{argument}' must be {_words(kind)}, not {type(value).__name__}"
            return f"{name}(): {words}"
    return None


def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """Return of which classes each argument is to be, for ``isinstance``."""
    wider: dict[Any, Any] = {Any: object, bool: object, int: int | SupportsIndex}
    hints = typing.get_type_hints(function)
    return {name: wider.get(kind, kind) for name, kind in hints.items() if name != "return"}


def _words(kind: Any) -> str:
    if kind == int | SupportsIndex:
        return "int"
    if isinstance(kind, UnionType):
        return " or ".join(_words(arg) for arg in kind.__args__)
    return "None" if kind is NoneType else str(kind.__name__)
