"""Functions whose call runs nothing yet: where one is called for its effects, that is a mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kernbench.errors import UsageError

LAZY_HELP = "calling it runs none of its code; write a plain function, without async and yield"


def lazy_kind(function: Callable[..., Any]) -> str | None:
    """Return what a function is whose call runs nothing, None for any other.

    >>> lazy_kind(lambda: (yield)), lazy_kind(len)
    ('a generator function', None)
    """
    if inspect.iscoroutinefunction(function):
        return "a coroutine function"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "a generator function"
    return None


def refuse_lazy_result(result: object, called: str) -> None:
    """Refuse what a call returned, if that has yet to be run.

    Raises:
        UsageError: It is a coroutine or a generator.
    """
    if inspect.iscoroutine(result):
        result.close()
        raise UsageError(f"{called} returned a coroutine; {LAZY_HELP}")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise UsageError(f"{called} returned a generator; {LAZY_HELP}")
