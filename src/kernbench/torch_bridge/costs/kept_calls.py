"""Calls of operations as they are kept with a run, so that they can be timed on another machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, strided

from kernbench.hardware import Machine
from kernbench.library_kernels import AutogradPhase, Reuse
from kernbench.runtime_api import Keeper
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.operations import Operation, describe
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.processes.float32 import Float32

_NAMED = (torch.dtype, torch.layout, torch.memory_format)
_REGISTERED_BY = {"fsdp": "torch.distributed.fsdp"}
"""The part of PyTorch that registers the operations of a namespace when it is imported."""


class NotKeptError(Exception):
    """An argument that cannot be written down."""


class KeptCosts(OperationCosts):
    """Schedules of operations, which note what calls they are of."""

    def __init__(self, machine: Machine, precision: Float32, keeper: Keeper) -> None:
        super().__init__(machine, precision)
        self._keeper = keeper
        self._float32 = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in asdict(precision).items()
        }

    def timing(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming:
        operation_timing = super().timing(func, operation, args, kwargs, result, sip_id)
        try:
            value = [_kept(args), _kept(kwargs), _kept(result)]
        except NotKeptError:
            return operation_timing
        described = {
            "kind": "operation",
            "operation": (func._schema.name, func._overloadname),
            "given": value,
            "allowed": self.attention.asked(),
            "float32": self._float32,
            "sip": sip_id,
        }
        return self._of_call(operation_timing, described, str(func))

    def streamed(self, name: str, read: int, written: int, sip_id: int) -> OperationTiming:
        operation_timing = super().streamed(name, read, written, sip_id)
        described = {
            "kind": "streamed",
            "given": (name, read, written, sip_id),
            "float32": self._float32,
        }
        return self._of_call(operation_timing, described)

    def _of_call(
        self, operation_timing: OperationTiming, described: dict[str, Any], name: str = ""
    ) -> OperationTiming:
        """Return schedules of this call alone: calls that are alike here may not be elsewhere.

        An operation with a ``name`` may be unknown where the call is timed again.
        """
        return self.once(_noted, operation_timing, json.dumps(described), name)

    def note(
        self, operation_timing: OperationTiming, described: dict[str, Any], name: str
    ) -> OperationTiming:
        """Return new schedules of a call, and note what call they are of."""

        def with_reuse(reuse: Reuse) -> OperationTiming:
            reused = operation_timing.with_reuse(reuse)
            return self._of_call(reused, {**described, "phase": int(reuse.phase)}, name)

        own = OperationTiming(operation_timing.template, with_reuse)
        self._keeper.comes_from(own, described, name)
        return own


def _noted(
    costs: KeptCosts, operation_timing: OperationTiming, described: str, name: str
) -> OperationTiming:
    return costs.note(operation_timing, json.loads(described), name)


def timing_of_call(costs: OperationCosts, value: Mapping[str, Any]) -> OperationTiming:
    """Return the schedules of a call that was kept, on the machine of ``costs``.

    Raises:
        AttributeError: This PyTorch has no such operation.
    """
    if value["kind"] == "streamed":
        name, read, written, sip_id = value["given"]
        return costs.streamed(name, read, written, sip_id)
    name, overload = value["operation"]
    namespace, _, short = name.partition("::")
    if namespace in _REGISTERED_BY:
        import_module(_REGISTERED_BY[namespace])
    func = getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")
    args, kwargs, result = map(_back, value["given"])
    costs.attention.only = tuple(value["allowed"])
    timing = costs.timing(func, describe(func), tuple(args), kwargs, result, value["sip"])
    return timing.in_phase(AutogradPhase(value["phase"])) if "phase" in value else timing


def _kept(value: Any) -> Any:
    """Return an argument in plain values.

    Raises:
        NotKeptError: There is no way to.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        if value.layout is not strided or value.is_nested:
            raise NotKeptError
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": [list(value.shape), list(value.stride()), dtype]}
    if isinstance(value, (list, tuple)):
        return {"all": [_kept(item) for item in value], "tuple": isinstance(value, tuple)}
    if isinstance(value, dict):
        return {"names": {name: _kept(item) for name, item in value.items()}}
    if isinstance(value, _NAMED):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, torch.Generator):
        return None
    raise NotKeptError


def _back(kept: Any) -> Any:
    if not isinstance(kept, dict):
        return kept
    (kind, value), *rest = kept.items()
    if kind == "tensor":
        shape, strides, dtype = value
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device="meta")
    if kind == "all":
        backs = [_back(item) for item in value]
        return tuple(backs) if rest[0][1] else backs
    if kind == "names":
        return {name: _back(item) for name, item in value.items()}
    if kind == "torch":
        return getattr(torch, value)
    return torch.device("meta")
