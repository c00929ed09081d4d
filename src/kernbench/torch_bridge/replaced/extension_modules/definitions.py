"""Operators of engines by name: what each computes, and the kernel whose time it takes.

A definition takes arguments by their names in the schema, so that it holds for whichever versions
and engines have an operator of that name and meaning.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernbench.library_kernels import ExpertTiles, LibraryKernel
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import OperationCosts, num_bytes
from kernbench.torch_bridge.costs.families.gemm import Multiplication
from kernbench.torch_bridge.costs.families.gemm import kernels as product_kernels
from kernbench.torch_bridge.costs.library import timing_of_library
from kernbench.torch_bridge.costs.products import OperandLayout, Products
from kernbench.torch_bridge.dispatch.known_values import deal, follow_kernel
from kernbench.torch_bridge.processes.call_counts import uncounted, unseen
from kernbench.torch_bridge.processes.of_all import OperatorCall, as_kernel
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.shared_objects import (
    needs_cuda,
    operators_of,
)
from kernbench.torch_bridge.replaced.package_kernels.launching import run_kernel

_MODULES = (
    *("attention", "caches", "deep_gemm", "dense", "experts", "grouped", "of_hosts", "packed"),
    *("quantized", "sampling", "sglang"),
)


@dataclass(frozen=True, slots=True)
class OperatorDefinition:
    """An operator by its definition."""

    run: Callable[[OperatorCall], Any]
    defaults: Mapping[str, Any]
    """The arguments that it takes, with what stands for those that a version does not have."""
    shapes: Callable[[OperatorCall], Any]
    """Returns results without data."""
    on_host: bool = False
    """Whether it launches nothing, whatever its tensors are on."""
    ignores: frozenset[str] = frozenset()
    """Arguments that it leaves out, as they change how it is computed, but not what."""


def _launch(
    call: OperatorCall,
    compute: Callable[[OperatorCall], None],
    written: Sequence[Tensor],
    timing: Callable[[int], Any],
    *,
    follows: bool = False,
) -> None:
    """Run ``compute`` as one kernel of ``timing``, which writes some of the arguments.

    ``follows``: without data, numbers that are known make what is written known, too.
    """
    value, names = tuple(call.named.values()), tuple(call.named)

    def by_position(*value: Any) -> None:
        compute(replace(call, named=dict(zip(names, value, strict=True))))

    run_kernel(call.func, by_position, value, written, timing)
    if follows:
        follow_kernel(by_position, value, written)


_DEFINITIONS: dict[str, OperatorDefinition] = {}


@cache
def definition_of(namespace: str, name: str) -> OperatorDefinition | None:
    """Return the definition of an operator, its namespace's own before one of all; else None."""
    with uncounted():
        for module in _MODULES:
            import_module(f"{__package__}.{module}")
    return _DEFINITIONS.get(f"{namespace}::{name}") or _DEFINITIONS.get(name)


def defines(
    *names: str,
    takes: str = "",
    shapes: Callable[[OperatorCall], Any] | None = None,
    on_host: bool = False,
    ignores: str = "",
) -> Callable[[Callable[[OperatorCall], Any]], Callable[[OperatorCall], Any]]:
    """Let a function of an :class:`OperatorCall` be operators of these names.

    ``takes`` are the names of the schema's arguments that it reads, e.g. ``x scale topk=1``: what a
    version does not have is None, or what stands behind ``=``. Arguments that change how, but not
    what it computes, are those in ``ignores``. ``shapes`` returns results without data; an operator
    without results needs none.
    """
    words = [word.partition("=") for word in takes.split()]
    defaults = {word: literal_eval(value) if value else None for word, _, value in words}

    def add(function: Callable[[OperatorCall], Any]) -> Callable[[OperatorCall], Any]:
        operator_definition = OperatorDefinition(
            unseen(function), defaults, shapes or _nothing, on_host, frozenset(ignores.split())
        )
        _DEFINITIONS.update(dict.fromkeys(names, operator_definition))
        return function

    return add


def launches(
    *names: str,
    takes: str,
    timing: Callable[[OperatorCall], Callable[[int], Any]],
    ignores: str = "",
    follows: bool = False,
) -> Callable[[Callable[[OperatorCall], None]], Callable[[OperatorCall], None]]:
    """Let a function that writes to arguments be one kernel under these names.

    ``timing`` returns what says how long the kernel takes on a SIP. ``takes`` and ``ignores`` are
    as of :func:`defines`, ``follows`` as of :func:`streams`.
    """

    def add(compute: Callable[[OperatorCall], None]) -> Callable[[OperatorCall], None]:
        @defines(*names, takes=takes, ignores=ignores)
        def run(call: OperatorCall) -> None:
            _launch(call, compute, call.written, timing(call), follows=follows)

        return compute

    return add


def streams(
    *names: str,
    takes: str,
    over: Sequence[str] = (),
    moves: Callable[[OperatorCall], tuple[int, int]] | None = None,
    follows: bool = False,
    into: Sequence[str] = (),
    deals: Sequence[str] = (),
) -> Callable[[Callable[[OperatorCall], None]], Callable[[OperatorCall], None]]:
    """Let a function that writes to arguments be a kernel that streams their bytes.

    What the schema does not say to be written is read, and what is named in ``over`` is both.
    ``moves`` returns the bytes read and written where these are not all of the tensors. ``into`` is
    written without a word of the schema; ``takes`` is as of :func:`defines`. ``deals`` are scores
    and the experts chosen by them: even ones without data. ``follows``: without data, numbers that
    are known make what is written known, too.
    """

    def add(compute: Callable[[OperatorCall], None]) -> Callable[[OperatorCall], None]:
        @defines(*names, takes=takes)
        def run(call: OperatorCall) -> None:
            written = [call.named[name] for name in into] if into else call.written
            if moves is not None:
                read, stored = moves(call)
            else:
                held = {id(item) for item in written}
                stored = num_bytes(written)
                read = num_bytes([item for item in call.named.values() if id(item) not in held])
                read += num_bytes([getattr(call, name) for name in over])
            name = describe(call.func).name
            costs = current().session.costs
            _launch(
                call,
                compute,
                written,
                lambda sip_id: costs.streamed(name, read, stored, sip_id),
                follows=follows,
            )
            if deals:
                deal(*(call.named[name] for name in deals))

        return compute

    return add


def makes(
    *names: str,
    takes: str,
    result: Callable[[OperatorCall], Any],
    timing: Callable[[OperatorCall, Any], Callable[[int], Any]] | None = None,
    deals: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a function that writes to its first arguments be operators that return these.

    ``result`` returns them without contents. ``timing`` takes the call and what it returns; without
    it, bytes are streamed. ``takes`` is as of :func:`defines`. ``deals`` is the argument with the
    scores by which the last result, experts, was chosen: even ones without data.
    """

    def add(compute: Callable[..., None]) -> Callable[..., None]:
        @defines(*names, takes=takes, shapes=result)
        def run(call: OperatorCall) -> Any:
            answer = result(call)
            results = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
            count, keys = len(results), tuple(call.named)

            def by_position(*value: Any) -> None:
                named = dict(zip(keys, value[count:], strict=True))
                compute(*value[:count], replace(call, named=named))

            argument = (*results, *call.named.values())
            if timing is None:
                spent = as_stream(call.func, call.named.values(), results)
            else:
                spent = timing(call, answer)
            run_kernel(call.func, by_position, argument, results, spent)
            if deals:
                deal(call.named[deals], results[-1])
            return answer

        return compute

    return add


def as_stream(func: Any, read: Iterable[Any], written: Iterable[Any]) -> Callable[[int], Any]:
    """Return what says how long a kernel that streams so many tensors takes on a SIP."""
    costs, name = current().session.costs, describe(func).name
    counts = num_bytes(read), num_bytes(written)
    return lambda sip_id: costs.streamed(name, *counts, sip_id)


def as_kernel_of_library(
    func: Any, launch: LibraryKernel, read: Iterable[Any], written: Iterable[Any]
) -> Callable[[int], Any]:
    """Return what says how long a library's kernel takes on a SIP.

    It streams tensors where the architecture has no constants of the kernel.
    """
    costs, by_bytes = current().session.costs, as_stream(func, read, written)
    if costs.library is None or launch.name not in costs.library.names():
        return by_bytes
    name = describe(func).name
    return lambda sip_id: costs.of(_of_library, name, launch, sip_id)


def _of_library(costs: OperationCosts, name: str, launch: LibraryKernel, sip_id: int) -> Any:
    assert costs.library is not None
    return timing_of_library(name, (launch,), costs.machine.sip_at(sip_id), costs.library)


def as_product(
    func: Any,
    products: Products | Callable[[], Products],
    rows: torch.dtype,
    out: torch.dtype,
    *,
    weight_bytes: float | None = None,
    grouped: bool = False,
    library: str = "blas",
    experts: ExpertTiles | None = None,
) -> Callable[[int], Any]:
    """Return what says how long products of rows and weights take on a SIP.

    ``library`` is whose kernels multiply, as in ``library_kernels.Product``; ``experts`` are the
    tiles of those that are for groups. Weights of other bytes
    than the rows' dtype, scales included, are made numbers of it on their way to the matrix engine.
    """
    costs, name = current().session.costs, describe(func).name
    multiplied, stored = kernel_dtype(rows), kernel_dtype(out)
    layout = OperandLayout(weight_bytes=weight_bytes, grouped=grouped)
    if multiplied is None or stored is None:
        raise UnsupportedTorchError(f"{name} of {rows}: no unit that is described multiplies it")

    def timing(sip_id: int) -> Any:
        sizes = products() if callable(products) else products
        if not sizes:
            return None
        problem = Multiplication(
            sizes, multiplied, stored, layout=layout, library=library, experts=experts
        )
        return costs.of(product_kernels, name, problem, sip_id)

    return timing


def as_operation(func: Any, args: tuple[Any, ...], result: Any) -> Callable[[int], Any]:
    """Return what says how long ``result = func(*args)`` of PyTorch takes on a SIP."""
    costs, operation = current().session.costs, describe(func)
    return lambda sip_id: costs.timing(func, operation, args, {}, result, sip_id)


def bind(definition: OperatorDefinition, func: Any) -> Callable[..., Any]:
    """Return the kernel of an operator for the dispatcher.

    Raises:
        UnsupportedTorchError: From a call with an argument that the definition does not have.
    """
    arguments = {argument.name: argument.default_value for argument in func._schema.arguments}
    name = describe(func).name

    def run(call: OperatorCall) -> Any:
        named = dict(call.named)
        for argument in arguments.keys() - definition.defaults.keys():
            if (
                argument not in definition.ignores
                and named[argument] is not None
                and named[argument] != arguments[argument]
            ):
                raise UnsupportedTorchError(
                    f"{name} with {argument}={named[argument]!r}: kernbench's definition of the "
                    f"operator has no {argument}; register your own by "
                    f'torch.library.impl({func._name!r}, "CUDA"), or use the engine without it'
                )
            del named[argument]
        if not definition.on_host:
            current().session.operators[name] = None
        return definition.run(replace(call, named=named))

    return as_kernel(func, run, definition.defaults)


def shapes_of(definition: OperatorDefinition, func: Any) -> Callable[..., Any]:
    """Return the kernel of an operator for tensors without data."""
    return as_kernel(func, definition.shapes, definition.defaults)


def _nothing(call: OperatorCall) -> None:
    """Return nothing: results are written to operands."""


def operators_of_package(folder: Path) -> Iterator[tuple[Path, dict[str, bool]]]:
    """Yield shared objects of a package that need CUDA, and whether each operator is defined."""
    for file in sorted(folder.rglob("*.so")):
        namespaces, schemas = operators_of(file)
        if schemas and needs_cuda(file):
            names = [(own, name.partition("(")[0]) for own, name in schemas]
            yield (
                file.relative_to(folder.parent),
                {
                    name: any(
                        definition_of(namespace, name) for namespace in (own or "", *namespaces)
                    )
                    for own, name in names
                },
            )
