"""How the kernels of this package are compiled, and where their results go."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

import triton
import triton.language as tl

from kernbench.dtypes import DType
from kernbench.errors import UsageError
from kernbench.runtime_api import LaunchAttributes, Tensor, makes_results
from kernbench.triton_backend import CompiledLauncher


class kernel:  # noqa: N801  # a decorator
    """A kernel that is compiled once per dtype, whatever its sizes and strides are.

    Triton would compile again for each pattern of arguments that are 1 or multiples of 16. That
    lets a GPU's compiler use wide accesses; here it would only cost compilations. Triton reads a
    function's text when it decorates it, so that it is asked only for kernels that are used.
    """

    def __init__(self, function: Any) -> None:
        self.function = function

    @cached_property
    def jit(self) -> Any:
        """Triton's own."""
        runtime = [
            name
            for name, parameter in inspect.signature(self.function).parameters.items()
            if "constexpr" not in str(parameter.annotation)
        ]
        compiled = triton.jit(do_not_specialize=runtime)(self.function)
        # A vendor's kernel in its place needs as many warps as it needs: these here say nothing.
        compiled.stands_for_library = True
        return compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jit, name)

    def __getitem__(self, grid: Any) -> Any:
        return self.jit[grid]


class Prepared:
    """A launch that lacks only its tensors, reused for all of equal dtypes and layouts.

    Triton's ``kernel[grid](...)`` looks at every argument to find the compiled kernel. A program
    asks for the same few launches again and again, so what it found is kept here. Where no hook
    listens to launches, Triton is not asked again.
    """

    __slots__ = ("_compiled", "_grid", "_launcher", "_rest")

    def __init__(self, compiled: Any, grid: tuple[int, int, int], rest: tuple[Any, ...]) -> None:
        self._compiled = compiled
        self._grid = grid
        self._rest = rest
        """The arguments after the tensors: numbers, then constants."""
        self._launcher: CompiledLauncher | None = None

    def launch(
        self,
        name: str,
        tensors: tuple[Tensor | None, ...],
        context: Any,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        """Launch it on the stream of the current rank."""
        launcher = self._launcher
        if launcher is not None:
            binary = launcher.plain
            if binary is not None:
                args = launcher.pick((*tensors, *self._rest))
                context.launcher.launch_named(name, binary, self._grid, args, attributes)
                return
        context.launch(
            name, self._compiled, *tensors, *self._rest, grid=self._grid, attributes=attributes
        )
        if all(self._grid):
            self._launcher = self._compiled.run


def prepare(
    kernel: Any,
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[int, ...],
    grid: tuple[int, ...],
    constants: dict[str, Any],
    **options: Any,
) -> Prepared:
    """Return a launch of a kernel whose parameters are tensors, then numbers, then constants."""
    compiled = kernel.warmup(*tensors, *numbers, grid=grid, **constants, **options)
    names = kernel.arg_names[len(tensors) + len(numbers) :]
    x, y, z = (*grid, 1, 1)[:3]
    return Prepared(compiled, (x, y, z), (*numbers, *(constants[name] for name in names)))


class Memo(dict[Any, Any]):
    """Prepared launches by all that decides them; cleared when full."""

    def keep(self, key: Any, value: Any) -> Any:
        """Store ``value`` and return it."""
        if len(self) >= _MOST_KEPT:
            self.clear()
        self[key] = value
        return value


_MOST_KEPT = 4096


@makes_results
def new_result(shape: tuple[int, ...], dtype: DType, beside: Tensor) -> Tensor:
    """Return a tensor for a result, on the SIP of the operand ``beside``.

    It is laid over the SIP's cubes and PEs as that operand is, where the shapes agree.
    """
    return beside.new_result(shape, dtype)


def require_dims(what: str, tensor: Tensor, least: int) -> None:
    """Refuse a tensor with fewer dims.

    Raises:
        UsageError: It has fewer.
    """
    if len(tensor.shape) < least:
        raise UsageError(
            f"{what} needs a tensor of at least {least} dims, but got shape {tuple(tensor.shape)}"
        )


def normal_dim(what: str, tensor: Tensor, dim: int) -> int:
    """Return ``dim`` counted from the front.

    Raises:
        UsageError: The tensor has no such dim.
    """
    num_dims = len(tensor.shape)
    if not -num_dims <= dim < num_dims:
        raise UsageError(
            f"{what}: dim {dim} does not exist in a tensor of shape {tuple(tensor.shape)}"
        )
    return dim % num_dims


def index_type(*tensors: Any) -> Any:
    """Return Triton's type for offsets of these tensors' elements: int64 from 2^31 on."""
    reach = 0
    for tensor in (item for item in tensors if isinstance(item, Tensor)):
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        reach = max(reach, sum((size - 1) * stride for size, stride in sizes))
    return tl.int64 if reach >= 1 << 31 else tl.int32
