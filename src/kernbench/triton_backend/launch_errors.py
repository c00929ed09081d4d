"""Errors of launches that Triton itself refuses, or wrongly accepts, in kernbench's words.

Triton binds and specialises the arguments of ``kernel[grid](...)`` before it asks its driver for
anything, knows neither the kernel's name nor the parameter in what it raises, and looks at no more
than three sizes of a grid. So while a run is active ``JITFunction.run`` is one that knows both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from triton.compiler.errors import CompilationError
from triton.runtime import JITFunction
from triton.runtime import driver as triton_driver

from kernbench.errors import KernbenchError, UsageError, nearest
from kernbench.triton_backend.driver import KernbenchDriver
from kernbench.triton_backend.replaced import ReplacedAttributes


class BadArgumentError(UsageError, TypeError):
    """An argument of a launch that no kernel takes, or that this one does not; names both."""


class ArgumentOverflowError(BadArgumentError, OverflowError):
    """An integer of a launch that does not fit into 64 bits."""


class UnknownArgumentError(UsageError, KeyError):
    """A keyword of a launch that is neither a parameter nor an option; names the nearest."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


_RUN: Callable[..., Any] = JITFunction.run
_MOST_DIMENSIONS = 3
_OPTIONS = ("num_warps", "num_stages", "num_ctas")


@contextmanager
def around_launches(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Let every launch inside the ``with`` call what ``wrap`` makes of the function that launches.

    It must be entered inside of a run, and left before the run ends.
    """
    run = JITFunction.run
    JITFunction.run = wrap(run)
    try:
        yield
    finally:
        JITFunction.run = run


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """Launch, as Triton does."""
    if not isinstance(triton_driver._active, KernbenchDriver):
        return _RUN(self, *args, grid=grid, warmup=warmup, **kwargs)
    if type(grid) is not tuple or not 0 < len(grid) <= _MOST_DIMENSIONS:
        grid = _checked_grid(self, grid) if not warmup else grid
    try:
        return _RUN(self, *args, grid=grid, warmup=warmup, **kwargs)
    except CompilationError as error:
        _add_place(self, error)
        raise
    except (TypeError, LookupError, OverflowError, RuntimeError) as error:
        if isinstance(error, KernbenchError):
            raise
        explained = _explained(self, args, kwargs, error)
        if explained is None:
            raise
        raise explained from error


REPLACED = ReplacedAttributes(JITFunction, run=_run)
"""Make faulty launches raise these errors."""


def _checked_grid(kernel: Any, grid: Any) -> Any:
    """Return a grid of at most three sizes, or the function that gives one when it is called."""
    if callable(grid):

        def checked(bound: Mapping[str, Any]) -> Any:
            result = grid(bound)
            return (
                result if type(result) is tuple and 0 < len(result) <= 3 else _sizes(kernel, result)
            )

        return checked
    return _sizes(kernel, grid)


def _sizes(kernel: Any, grid: Any) -> tuple[Any, ...]:
    try:
        sizes = tuple(grid)
    except TypeError:
        alone = f"; a single size is written ({grid},)" if isinstance(grid, int) else ""
        raise BadArgumentError(
            f"grid of kernel {kernel.__name__} must be a tuple of one to three sizes, but got "
            f"{grid!r}{alone}"
        ) from None
    if not 0 < len(sizes) <= _MOST_DIMENSIONS:
        advice = "; fold several into one and take program_id apart in the kernel" if sizes else ""
        raise UsageError(
            f"grid of kernel {kernel.__name__} must have one to three sizes, but got {grid}{advice}"
        )
    return sizes


def _explained(
    kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
) -> UsageError | None:
    """Return our error for one of Triton's, or None if its cause is unknown."""
    text = str(error)
    call = f"kernel {kernel.__name__}"
    if "dynamic_func()" in text:
        # Triton's name for the function that binds arguments.
        names = ", ".join(kernel.arg_names)
        return BadArgumentError(f"{text.replace('dynamic_func()', call)}; it has {names}")
    unknown = re.search(r"Keyword argument (\w+) was specified but unrecognised", text)
    if unknown is not None:
        close = nearest(unknown[1], [*kernel.arg_names, *_OPTIONS])
        return UnknownArgumentError(f"{call} has no argument or option {unknown[1]}: {close}")
    try:
        bound = inspect.signature(kernel.fn).bind_partial(
            *args, **{name: value for name, value in kwargs.items() if name in kernel.arg_names}
        )
    except TypeError:
        return None
    constexprs = {param.name for param in kernel.params if param.is_constexpr}
    for name, argument in bound.arguments.items():
        if name not in constexprs and (why := _refusal(argument, error)):
            is_integer = isinstance(argument, int)
            kind = ArgumentOverflowError if is_integer else BadArgumentError
            return kind(f"argument {name} of {call} {why}")
    return None


def _refusal(value: Any, error: Exception) -> str | None:
    """Return what is wrong with an argument, or None."""
    kind = type(value).__name__
    if hasattr(value, "data_ptr"):
        return _tensor_refusal(value, error)
    if isinstance(value, tuple):
        inner = (_refusal(item, error) for item in value)
        return next((f"is a tuple with an element that {why}" for why in inner if why), None)
    if isinstance(value, int):
        fits = -(1 << 63) <= value < 1 << 64
        return None if fits else f"is {value}, which does not fit into 64 bits"
    if hasattr(value, "__array__"):
        if getattr(value, "shape", None) == ():
            return f"is a number of numpy ({kind}); kernels take Python's, use .item()"
        return f"is a numpy array ({kind}); kernels take tensors, make one with torch.from_numpy"
    if value is None or isinstance(value, float | JITFunction) or hasattr(value, "block_shape"):
        return None
    return (
        f"is a {kind}; kernels take tensors, numbers and None, anything else must be a tl.constexpr"
    )


def _tensor_refusal(value: Any, error: Exception) -> str | None:
    dtype = str(getattr(value, "dtype", None)).rpartition(".")[2]
    if isinstance(error, KeyError) and error.args == (dtype,):
        return f"is a tensor of {dtype}, which Triton has no type for"
    try:
        value.data_ptr()
    except RuntimeError as own:
        # A sparse one, for example.
        return f"has no memory that a pointer could name: {own}"
    return None


def _add_place(kernel: Any, error: CompilationError) -> None:
    """Say which kernel did not compile, and where: Triton counts lines from its ``def``."""
    lines, first = inspect.getsourcelines(kernel.fn)
    above = next((at for at, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    line = first + above + getattr(error.node, "lineno", 1) - 1
    error.add_note(
        f"kernel {kernel.__name__} at {kernel.fn.__code__.co_filename}:{line} does not compile"
    )
