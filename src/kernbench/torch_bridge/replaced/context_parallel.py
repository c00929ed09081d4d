"""Context parallel attention, whose module-level state in PyTorch becomes per rank."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed.tensor.experimental._context_parallel._attention as ring
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.overrides import handle_torch_function, has_torch_function

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.process import HERE, current

_aten = torch.ops.aten
_Options: Any = ring._ContextParallelOptions
_ForAll = Callable[[], AbstractContextManager[None]]


class ContextParallel:
    """The settings of one process."""

    def __init__(self) -> None:
        self.options = dict(vars(ring._cp_options))
        self.wrap: Callable[..., Any] | None = None
        """The patch that shards attention's operands, inside ``context_parallel``."""
        self.handlers: Any = None
        """The DTensor handlers to restore; None outside of context parallel attention."""


def _own() -> ContextParallel:
    return current().part(ContextParallel)


def _option(name: str) -> property:
    def put(self: Any, value: Any) -> None:
        _own().options[name] = value

    return property(lambda self: _own().options[name], put)


class _ProcessOptions(_Options):
    """Replaces the class of PyTorch's options, whose object stays the same."""

    convert_to_f32 = _option("convert_to_f32")
    enable_load_balance = _option("enable_load_balance")
    rotate_method = _option("rotate_method")


def install(patches: Patches, for_all: _ForAll) -> None:
    """Give every process its own context; ``for_all`` surrounds what is registered for all."""
    options: Any = ring._cp_options
    before = options.__class__
    options.__class__ = _ProcessOptions
    patches.on_close(setattr, options, "__class__", before)
    shared = _SharedRules(for_all)
    patches.set_all(
        ring,
        _distribute_function=_distribute,
        _restore_function=_restore,
        _enable_cp_dtensor_dispatcher=shared.enter,
        _disable_cp_dtensor_dispatcher=shared.leave,
    )
    patches.on_close(shared.close)
    patches.set(F, "scaled_dot_product_attention", _attention_like(F.scaled_dot_product_attention))


class _SharedRules:
    """PyTorch's sharding rules for ring attention, while any process needs them."""

    def __init__(self, for_all: _ForAll) -> None:
        self._for_all = for_all
        self._inside = 0

    def enter(self) -> None:
        own, dispatcher = _own(), _dispatcher()
        if own.handlers is None:
            own.handlers = dispatcher._custom_op_handlers
            self._inside += 1
            register = _rules().register_cp_sharding_rules
            with self._for_all():
                register()
        dispatcher._custom_op_handlers = {**own.handlers, **ring.custom_ops}

    def leave(self) -> None:
        own = _own()
        if own.handlers is None:
            return
        _dispatcher()._custom_op_handlers, own.handlers = own.handlers, None
        self._inside -= 1
        if not self._inside:
            self._unregister()

    def close(self) -> None:
        """Remove the rules of processes that ended inside a context."""
        if self._inside:
            self._unregister()

    def _unregister(self) -> None:
        with self._for_all():
            _rules().unregister_cp_sharding_rules()


def _rules() -> Any:
    """Return PyTorch's module of the rules; importing it imports the whole compiler."""
    name = "torch.distributed.tensor.experimental._context_parallel._sharding_rules"
    return importlib.import_module(name)


def _dispatcher() -> Any:
    return DTensor._op_dispatcher


def _distribute(fn: Any, fn_module: Any, device_mesh: Any, input_fn: Any, output_fn: Any) -> None:
    """Make the calling process's attention operate on shards over a mesh."""

    def wrap(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = input_fn(None, args, kwargs, device_mesh)
        return output_fn(None, (args, kwargs), _ring_attention(*args, **kwargs), device_mesh)

    _own().wrap = wrap


def _restore(fn: Any, fn_module: Any) -> None:
    _own().wrap = None


def _attention_like(original: Any) -> Any:
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        tensors = (*args[:4], kwargs.get("attn_mask"))
        if has_torch_function(tensors):
            # A tensor subclass may compare with what the program sees: neither the original nor
            # this function, of which there is another that is not counted as Python.
            return handle_torch_function(F.scaled_dot_product_attention, tensors, *args, **kwargs)
        process = HERE.process
        own = None if process is None else process.parts.get(ContextParallel)
        if own is not None and own.handlers is not None:
            if own.wrap is not None:
                return own.wrap(*args, **kwargs)
            if args and isinstance(args[0], DTensor):
                return _ring_attention(*args, **kwargs)
        return original(*args, **kwargs)

    scaled_dot_product_attention.__doc__ = original.__doc__
    return scaled_dot_product_attention


def _ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Call the operation on which the ring is built; C++ would choose the CPU's."""
    if attn_mask is not None:
        raise UnsupportedTorchError("context parallel attention takes no attn_mask")
    if torch.is_autocast_enabled(DEVICE_TYPE):
        dtype = torch.get_autocast_dtype(DEVICE_TYPE)
        query, key, value = (item.to(dtype) for item in (query, key, value))
    if enable_gqa:
        group = query.size(-3) // key.size(-3)
        key, value = (item.repeat_interleave(group, -3) for item in (key, value))
    flash = _aten._scaled_dot_product_flash_attention
    ring_attention: Tensor = flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return ring_attention
