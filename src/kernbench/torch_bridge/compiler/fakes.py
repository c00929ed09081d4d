"""Fake tensors of simulated devices: on ``cuda`` for Python, and on ``meta`` for C++.

The compiler traces with them. C++ of a build for the CPU would abort for a tensor on ``cuda``: it
has no device guard for it. So C++ is told ``meta``, and what it then asks for on ``meta`` while
something is compiled is meant for ``cuda``.
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

from kernbench.torch_bridge.base.operations import PLAIN
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.dispatch.shapes import format_of_convolution
from kernbench.torch_bridge.memory import CachingAllocator
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, META, with_index
from kernbench.torch_bridge.placement.residence import settle
from kernbench.torch_bridge.processes.compiling import COMPILING, Views
from kernbench.torch_bridge.processes.process import current

_make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
_DEVICE_OF_FAKE = torch.ops.prim.device.default
_WITHOUT_INDEX = (DEVICE_TYPE, torch.device(DEVICE_TYPE))
_INDEXING = (operator.getitem, operator.setitem)
_OF_PATTERNS = ("joint_graph", "pre_grad", "post_grad", "freezing_patterns")
"""The parts of Inductor that trace the patterns they look for."""
_AT_DEVICE = 6
_AT_DISPATCH_DEVICE = 10
"""Positions among the arguments of ``_make_wrapper_subclass``."""


def install(patches: Patches, views: Views) -> None:
    """Let the compiler trace with tensors of simulated devices."""
    from torch._dynamo.output_graph import SubgraphTracer
    from torch._subclasses import fake_tensor, functional_tensor
    from torch.fx.experimental import proxy_tensor

    modes: tuple[Any, ...] = (
        fake_tensor.FakeTensorMode,
        functional_tensor.FunctionalTensorMode,
        proxy_tensor.ProxyTorchDispatchMode,
    )
    for mode in modes:
        patches.set(mode, "__torch_dispatch__", _meaning_cuda(mode.__torch_dispatch__))
    table = fake_tensor._DISPATCH_META_HANDLERS
    before = table[_DEVICE_OF_FAKE]
    table[_DEVICE_OF_FAKE] = _device_for_cpp
    patches.on_close(table.__setitem__, _DEVICE_OF_FAKE, before)
    dispatch = fake_tensor.FakeTensor.__torch_dispatch__.__func__
    patches.set(fake_tensor.FakeTensor, "__torch_dispatch__", classmethod(_answering(dispatch)))
    patches.set(fake_tensor, "init_gpu_context", lambda device: None)
    patches.set(SubgraphTracer, "create_proxy", _with_indices(SubgraphTracer.create_proxy))
    for name in _OF_PATTERNS:
        module = importlib.import_module(f"torch._inductor.fx_passes.{name}")
        patches.wrap(module, "lazy_init", _on_one_device)
    views.over.update(
        {
            (Tensor, "device"): property(_device_of),
            (Tensor, "_make_wrapper_subclass"): staticmethod(_wrapper),
        }
    )
    determine = torch._C._conv_determine_backend_memory_format
    format_of = functools.partial(_format_of_convolution, determine)
    views.over[torch._C, "_conv_determine_backend_memory_format"] = format_of
    for kind in (DEVICE_TYPE, "cpu", "meta"):
        views.over[Tensor, f"is_{kind}"] = property(functools.partial(_is_on, kind))


def _device_for_cpp(args: Any) -> torch.device:
    asked = args[0]
    device = getattr(asked, "fake_device", None)
    if device is None:
        # C++ asks for the device of a functional tensor around a fake one, from PyTorch 2.14 on.
        device = _device_of(asked)
        return META if device.type == DEVICE_TYPE else device
    return META if asked.fake_mode.in_kernel_invocation or device.type == DEVICE_TYPE else device


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_OF_FAKE:
            return _device_for_cpp(args)
        return original(cls, func, types, args, kwargs or {})

    return dispatch


def _meaning_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a mode's dispatch, to which ``cuda`` and C++'s ``meta`` are the rank's own device."""

    @functools.wraps(original)
    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and COMPILING.depth:
            device = kwargs.get("device")
            # Results are kept by arguments, so that a device without its index is another rank's.
            if isinstance(device, torch.device) and (
                device.type == "meta" or device in _WITHOUT_INDEX
            ):
                kwargs = {**kwargs, "device": with_index(DEVICE_TYPE)}
        result = original(self, func, types, args, kwargs or {})
        if getattr(result, "constant", None) is not None:
            _place_constant(result, args, kwargs or {})
        return result

    return dispatch


def _place_constant(value: Any, args: Any, kwargs: Any) -> None:
    """Place a fake tensor of known numbers where its operands are.

    Its numbers are computed by C++ alone, which has them on the host.
    """
    operands = tree_leaves((args, kwargs))
    device = next((operand for operand in operands if isinstance(operand, torch.device)), None)
    if device is None:
        places = [_device_of(operand) for operand in operands if isinstance(operand, Tensor)]
        device = next((place for place in places if place.type == DEVICE_TYPE), None)
    if device is None:
        return
    if device.type == DEVICE_TYPE:
        value.fake_device = with_index(device)
        settle(value.constant, value.fake_device, "aten.lift_fresh")
    elif device_of(value.constant).type == DEVICE_TYPE:
        # For C++ it was on the host already, and so the same tensor.
        with no_dispatch():
            value.constant = value.constant.clone()
        value.fake_mode.fake_tensor_converter.add_constant_storage_mapping(value)
        value.fake_device = device


def _format_of_convolution(original: Callable[..., Any], x: Any, weight: Any, backend: Any) -> Any:
    if _device_of(x).type != DEVICE_TYPE:
        return original(x, weight, backend)
    return format_of_convolution(x, weight)


def _with_indices(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what adds a call to Dynamo's graph, with the index of each device that it names.

    C++ would ask the device guard, which there is none of, for the current one.
    """

    @functools.wraps(original)
    def create_proxy(
        self: Any, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any
    ) -> Any:
        if kind in ("call_function", "call_method") and not _is_of_streams(target):
            args = tuple(map(_full, args))
            kwargs = {name: _full(value) for name, value in kwargs.items()}
            if target in _INDEXING and _is_of_device(args[0]):
                args = (args[0], _as_tensors(self, args[0], args[1]), *args[2:])
        if (kind, target, len(args)) == ("call_method", DEVICE_TYPE, 1):
            kwargs.setdefault("device", with_index(DEVICE_TYPE))
        return original(self, kind, target, args, kwargs, *rest, **named)

    return create_proxy


def _full(argument: Any) -> Any:
    named = isinstance(argument, (str, torch.device)) and argument in _WITHOUT_INDEX
    return with_index(DEVICE_TYPE) if named else argument


class WithIndices(TorchFunctionMode):
    """Calls functions with the index of each device that a program names, as in Dynamo's graphs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Dynamo, which control flow is traced with, gives them by itself.
        if func is torch.device or torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(_full, (args, kwargs or {}))
        if func is Tensor.cuda and len(args) == 1:
            kwargs.setdefault("device", with_index(DEVICE_TYPE))
        return func(*args, **kwargs)


def _is_of_device(argument: Any) -> bool:
    example = getattr(getattr(argument, "node", None), "meta", {}).get("example_value")
    return isinstance(example, Tensor) and _device_of(example).type == DEVICE_TYPE


def _as_tensors(tracer: Any, tensor: Any, index: Any) -> Any:
    """Return an index with tensors for its lists of numbers, which C++ would make on ``meta``."""
    if isinstance(index, tuple):
        return tuple(_as_tensors(tracer, tensor, item) for item in index)
    if not isinstance(index, list) or not all(type(item) in (int, bool) for item in index):
        return index
    from torch._dynamo.variables.builder import wrap_fx_proxy

    device = tensor.node.meta["example_value"].device
    proxy = tracer.create_proxy("call_function", torch.tensor, (index,), {"device": device})
    return wrap_fx_proxy(tracer.output_graph.current_tx, proxy).as_proxy()


def _on_one_device(original: Callable[..., Any], device: Any = None) -> Any:
    """Trace patterns, for the first device alone: all ranks share them.

    A graph without inputs names no device, or one without an index, for which C++ asks a guard.
    The numbers in them take memory of no device, least of all of one that is not the rank's.
    """
    if device is None or device.type == DEVICE_TYPE:
        device = torch.device(DEVICE_TYPE, 0)
    process = current()
    own = process.allocators
    of_nobody = CachingAllocator(lambda size_bytes: None, lambda size_bytes: None)
    process.allocators = {**own, process.first_sip: of_nobody}
    try:
        return original(device)
    finally:
        process.allocators = own


def _is_of_streams(target: Any) -> bool:
    """Return whether a call is an operation that takes the kind of a device and its index apart."""
    is_operation = isinstance(target, (OpOverload, OpOverloadPacket))
    return is_operation and str(target).startswith("streams.")


def _device_of(tensor: Any) -> torch.device:
    """Return where the compiler sees a tensor."""
    if type(tensor).__name__ == "FakeTensor":
        device: torch.device = tensor.device
        return device
    device = device_of(tensor)
    if device.type == "meta" and (
        torch._is_functional_tensor(getattr(tensor, "elem", tensor)) or type(tensor) not in PLAIN
    ):
        return with_index(DEVICE_TYPE)
    return device


def _is_on(kind: str, tensor: Any) -> bool:
    return _device_of(tensor).type == kind


def _wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if (
        cls.__name__ == "FunctionalTensor"
        and len(args) > _AT_DISPATCH_DEVICE
        and args[_AT_DEVICE].type == DEVICE_TYPE
    ):
        # Autograd finds its kernels by the device's key; C++ asks this wrapper for its device.
        args = (*args[:_AT_DISPATCH_DEVICE], True, *args[_AT_DISPATCH_DEVICE + 1 :])
        return _make_wrapper_subclass(cls, *args, **kwargs)
    if device is not None and torch.device(device).type == DEVICE_TYPE:
        kwargs["device"] = META
    metas = [
        META if isinstance(arg, torch.device) and arg.type == DEVICE_TYPE else arg for arg in args
    ]
    return _make_wrapper_subclass(cls, *metas, **kwargs)
