"""Operators of engines by name: what each computes, and the kernel whose time it takes.

A definition's parameters have the names of the schema's arguments, so that it holds for whichever
versions and engines have an operator of that name and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.costs.families.gemm import Multiplication
from kernbench.torch_bridge.costs.families.gemm import kernels as product_kernels
from kernbench.torch_bridge.costs.products import OperandLayout, Products
from kernbench.torch_bridge.dispatch.known_values import deal, follow_kernel
from kernbench.torch_bridge.processes.call_counts import unseen
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

    call: Callable[..., Any]
    """Takes an :class:`OperatorAsked` and the arguments by name."""
    parameters: frozenset[str]
    shapes: Callable[..., Any]
    """Takes the arguments by name, and returns results without data."""
    on_host: bool = False
    """Whether it launches nothing, whatever its tensors are on."""
    ignores: frozenset[str] = frozenset()
    """Arguments that it leaves out, as they change how it is computed, but not what."""


@dataclass(frozen=True, slots=True)
class OperatorAsked:
    """A call of an operator."""

    func: Any
    """Its overload."""
    named: Mapping[str, Any]
    """Its arguments, those left out included."""
    into: tuple[str, ...] = ()
    """Arguments that it writes, where its schema does not say so."""

    @property
    def written(self) -> list[Tensor]:
        """The tensors that it writes."""
        return [
            result
            for argument in self.func._schema.arguments
            if (
                argument.name in self.into
                if self.into
                else argument.alias_info is not None and argument.alias_info.is_write
            )
            and isinstance(result := self.named.get(argument.name), Tensor)
        ]

    def run(
        self, compute: Callable[..., None], timing: Callable[[int], Any], *, follows: bool = False
    ) -> None:
        """Run ``compute``, which takes the arguments by name, as one kernel of ``timing``.

        ``follows``: without data, numbers that are known make what is written known, too.
        """
        value, written = tuple(self.named.values()), self.written
        by_position = self.by_position(compute)
        run_kernel(self.func, by_position, value, written, timing)
        if follows:
            follow_kernel(by_position, value, written)

    def by_position(self, compute: Callable[..., None]) -> Callable[..., None]:
        """Return a function of the arguments by position that calls one of them by name."""
        names = tuple(self.named)
        return lambda *value: compute(**dict(zip(names, value, strict=True)))


_DEFINITIONS: dict[str, OperatorDefinition] = {}


@cache
def definition_of(namespace: str, name: str) -> OperatorDefinition | None:
    """Return the definition of an operator, its namespace's own before one of all; else None."""
    for module in _MODULES:
        import_module(f"{__package__}.{module}")
    return _DEFINITIONS.get(f"{namespace}::{name}") or _DEFINITIONS.get(name)


def defines(
    *names: str,
    shapes: Callable[..., Any] | None = None,
    on_host: bool = False,
    ignores: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function of an :class:`OperatorAsked` and named arguments be operators of these names.

    ``shapes`` returns results without data; an operator without results needs none. Arguments that
    change how, but not what it computes, are those in ``ignores``.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = frozenset(list(signature(function).parameters)[1:])
        operator_definition = OperatorDefinition(
            unseen(function), parameters, shapes or _nothing, on_host, frozenset(ignores)
        )
        _DEFINITIONS.update(dict.fromkeys(names, operator_definition))
        return function

    return add


def launches(
    *names: str, timing: Callable[..., Callable[[int], Any]], ignores: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a function that writes to its arguments be one kernel under these names.

    ``timing`` takes the operator's overload and the arguments by name, and returns what says how
    long the kernel takes on a SIP. ``ignores`` is as of :func:`defines`.
    """

    def add(compute: Callable[..., None]) -> Callable[..., None]:
        def call(asked: OperatorAsked, **named: Any) -> None:
            asked.run(compute, timing(asked.func, **named))

        operator_definition = OperatorDefinition(
            unseen(call),
            frozenset(signature(compute).parameters),
            _nothing,
            ignores=frozenset(ignores),
        )
        _DEFINITIONS.update(dict.fromkeys(names, operator_definition))
        return compute

    return add


def streams(
    *names: str,
    over: Sequence[str] = (),
    moves: Callable[..., tuple[int, int]] | None = None,
    follows: bool = False,
    parameters: Sequence[str] = (),
    into: Sequence[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a function that writes to its arguments be a kernel that streams their bytes.

    What the schema does not say to be written is read, and what is named in ``over`` is both.
    ``moves`` takes the arguments by name, and returns the bytes read and written where these are
    not all of the tensors. ``parameters`` are the function's where its signature does not say them,
    and ``into`` what is written without a word of the schema.
    """

    def add(compute: Callable[..., None]) -> Callable[..., None]:
        def call(asked: OperatorAsked, **named: Any) -> None:
            asked = replace(asked, into=tuple(into))
            if moves is not None:
                read, stored = moves(**named)
            else:
                written = asked.written
                held = {id(item) for item in written}
                stored = num_bytes(written)
                read = num_bytes([item for item in named.values() if id(item) not in held])
                read += num_bytes([named[name] for name in over])
            name = describe(asked.func).name
            costs = current().session.costs
            asked.run(
                compute, lambda sip_id: costs.streamed(name, read, stored, sip_id), follows=follows
            )

        taken = frozenset(parameters or signature(compute).parameters)
        operator_definition = OperatorDefinition(unseen(call), taken, _nothing)
        _DEFINITIONS.update(dict.fromkeys(names, operator_definition))
        return compute

    return add


def makes(
    *names: str,
    result: Callable[..., Any],
    timing: Callable[..., Callable[[int], Any]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a function that writes to its first, positional arguments be operators that return these.

    ``result`` takes the arguments by name and returns them without contents. ``timing`` takes the
    operator, what it returns, and the arguments by name; without it, bytes are streamed.
    """

    def add(compute: Callable[..., None]) -> Callable[..., None]:
        parameters = signature(compute).parameters.values()
        named = frozenset(
            parameter.name
            for parameter in parameters
            if parameter.kind is not Parameter.POSITIONAL_ONLY
        )

        def call(asked: OperatorAsked, **arguments: Any) -> Any:
            answer = result(**arguments)
            results = answer if isinstance(answer, tuple) else (answer,)
            count, keys = len(results), tuple(arguments)

            def by_position(*value: Any) -> None:
                compute(*value[:count], **dict(zip(keys, value[count:], strict=True)))

            argument = (*results, *arguments.values())
            if timing is None:
                takes = as_stream(asked.func, arguments.values(), results)
            else:
                takes = timing(asked.func, answer, **arguments)
            run_kernel(asked.func, by_position, argument, results, takes)
            return answer

        operator_definition = OperatorDefinition(unseen(call), named, result)
        _DEFINITIONS.update(dict.fromkeys(names, operator_definition))
        return compute

    return add


def as_stream(func: Any, read: Iterable[Any], written: Iterable[Any]) -> Callable[[int], Any]:
    """Return what says how long a kernel that streams so many tensors takes on a SIP."""
    costs, name = current().session.costs, describe(func).name
    counts = num_bytes(read), num_bytes(written)
    return lambda sip_id: costs.streamed(name, *counts, sip_id)


def as_product(
    func: Any,
    products: Products | Callable[[], Products],
    rows: torch.dtype,
    out: torch.dtype,
    *,
    weight_bytes: float | None = None,
    grouped: bool = False,
) -> Callable[[int], Any]:
    """Return what says how long products of rows and weights take on a SIP.

    Weights of other bytes than the rows' dtype, scales included, are made numbers of it on their
    way to the matrix engine.
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
        problem = Multiplication(sizes, multiplied, stored, layout=layout)
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

    def kernel(*args: Any, **kwargs: Any) -> Any:
        named = {**arguments, **kwargs, **dict(zip(arguments, args, strict=False))}
        for argument in arguments.keys() - definition.parameters:
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
        return definition.call(OperatorAsked(func, named), **named)

    return kernel


def shapes_of(definition: OperatorDefinition, func: Any) -> Callable[..., Any]:
    """Return the kernel of an operator for tensors without data."""
    arguments = {argument.name: argument.default_value for argument in func._schema.arguments}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        named = {**arguments, **kwargs, **dict(zip(arguments, args, strict=False))}
        named = {name: value for name, value in named.items() if name in definition.parameters}
        return definition.shapes(**named)

    return kernel


def _nothing(**named: Any) -> None:
    """Return nothing: results are written to operands."""


def as_routing(
    asked: OperatorAsked,
    compute: Callable[..., None],
    scores: Tensor,
    ids: Tensor,
    value: tuple[Any, ...] | None = None,
    written: Sequence[Tensor] | None = None,
) -> None:
    """Run a choice of experts by scores as one kernel, whose choice is even without data.

    ``compute`` takes the arguments by name, or ``given`` by position where these are told.
    """
    written = asked.written if written is None else written
    if value is None:
        compute, value = asked.by_position(compute), tuple(asked.named.values())
    costs, name = current().session.costs, describe(asked.func).name
    read, stored = num_bytes((scores,)), num_bytes(written)
    run_kernel(
        asked.func,
        compute,
        value,
        written,
        lambda sip_id: costs.streamed(name, read, stored, sip_id),
    )
    deal(scores, ids)


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
