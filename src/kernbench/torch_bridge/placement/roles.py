"""What memory is for, as far as PyTorch's own objects know: modules, optimizers, autograd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from kernbench.memory import Phase
from kernbench.torch_bridge.memory import MemoryBlock

_storage_of: Any = torch._C.TensorBase.untyped_storage
_grad_of: Any = torch._C.TensorBase.grad.__get__
_without_functions = torch._C.DisableTorchFunctionSubclass
_SAVED = "_raw_saved_"
_CACHE = re.compile(r"(^|_)(k|v|kv|key|value|past)\w*cache|cache_?(k|v|kv)", re.IGNORECASE)
"""Names of buffers in which modules keep keys and values."""
_FROM_PYTHON = torch.autograd.function.BackwardCFunction


class ModuleName:
    """The path of a module from the outermost one that was seen; it may get longer later."""

    __slots__ = ("module", "path")

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = ref(module)
        self.path = type(module).__name__

    def __str__(self) -> str:
        return self.path


class Roles:
    """The modules and optimizers that a process has used, and what their tensors are for."""

    def __init__(self) -> None:
        self._names: dict[int, ModuleName] = {}
        """The names of modules by their identity."""
        self._roots: list[ref[torch.nn.Module]] = []
        self._optimizers: dict[int, ref[torch.optim.Optimizer]] = {}
        self._parameters: dict[int, tuple[ModuleName, str]] = {}
        """Modules and own names, by the identity of a parameter."""
        self._saving: dict[type, tuple[str, ...]] = {}
        """Attributes with saved tensors, by the class of an autograd node."""

    def name_of(self, module: Any, root: Any) -> ModuleName | str:
        """Return the name of a module that a call of ``root`` has called."""
        return "" if module is None else self._name_of(module, root)

    def known(self, module: torch.nn.Module) -> ModuleName | None:
        """Return the name of a module that has one already."""
        name = self._names.get(id(module))
        return name if name is not None and name.module() is module else None

    def _name_of(self, module: torch.nn.Module, root: torch.nn.Module) -> ModuleName:
        name = self._names.get(id(module))
        for outer in (root, module):
            if name is not None and name.module() is module:
                return name
            # It is new, or no part of the module that calls it.
            self._add(outer)
            name = self._names.get(id(module))
        if name is None or name.module() is not module:
            # Not even of itself, as it says.
            name = self._names[id(module)] = ModuleName(module)
        return name

    def _add(self, root: torch.nn.Module) -> None:
        top = self._names.get(id(root))
        if top is None or top.module() is not root:
            self._roots = [root for root in self._roots if root() is not None]
            self._roots.append(ref(root))
            base = type(root).__name__
        else:
            base = top.path
        for path, module in root.named_modules():
            name = self._names.get(id(module))
            if name is None or name.module() is not module:
                name = self._names[id(module)] = ModuleName(module)
            name.path = f"{base}.{path}" if path else base

    def know(self, optimizer: Any) -> None:
        """Remember an optimizer."""
        if isinstance(optimizer, torch.optim.Optimizer):
            self._optimizers[id(optimizer)] = ref(optimizer)

    def look_at_modules(self) -> None:
        """Note what parameters, their gradients, and buffers are."""
        with _without_functions():
            for root in self._roots:
                result = root()
                if result is not None:
                    self.look_at_module(result)

    def look_at_module(self, root: torch.nn.Module) -> None:
        """Do so for one module, and those in it."""
        with _without_functions():
            for module in root.modules():
                name = self._name_of(module, root)
                for own, parameter in list(module._parameters.items()):
                    if parameter is not None:
                        self._parameters[id(parameter)] = name, own
                        self._look_at_parameter(parameter)
                for own, buffer in list(module._buffers.items()):
                    if buffer is not None:
                        phase = Phase.KV_CACHE if _CACHE.search(own) else Phase.BUFFERS
                        _note(buffer, phase, f"{name}.{own}", name)

    def look_at_optimizers(self) -> None:
        """Note what their parameters, gradients and states are."""
        with _without_functions():
            for reference_type in list(self._optimizers.values()):
                optimizer = reference_type()
                if optimizer is None:
                    continue
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        self._look_at_parameter(parameter)
                for parameter, state in list(optimizer.state.items()):
                    name, module = self._name_of_parameter(parameter)
                    for key, tensor in _named_tensors(state):
                        _note(tensor, Phase.OPTIMIZER_STATE, f"{key} of {name}", module)

    def _name_of_parameter(self, parameter: Tensor) -> tuple[str, ModuleName | None]:
        pair = self._parameters.get(id(parameter))
        return ("a parameter", None) if pair is None else (f"{pair[0]}.{pair[1]}", pair[0])

    def _look_at_parameter(self, parameter: Tensor) -> None:
        name, module = self._name_of_parameter(parameter)
        _note(parameter, Phase.WEIGHTS, name, module)
        grad = _grad_of(parameter)
        if grad is not None:
            _note(grad, Phase.GRADIENTS, f"{name}.grad", module)

    def look_at_graph(self, outputs: Iterable[Any]) -> None:
        """Note what autograd has saved for the backward pass from some outputs."""
        nodes = [
            output.grad_fn if isinstance(output, Tensor) else getattr(output, "node", None)
            for output in outputs
        ]
        seen = {node for node in nodes if node is not None}
        pending = list(seen)
        with _without_functions():
            while pending:
                node = pending.pop()
                for tensor in self._saved_by(node):
                    _note(tensor, Phase.ACTIVATIONS)
                for after, _ in node.next_functions:
                    if after is not None and after not in seen:
                        seen.add(after)
                        pending.append(after)

    def _saved_by(self, node: Any) -> Iterator[Tensor]:
        kind = type(node)
        names = self._saving.get(kind)
        if names is None:
            names = tuple([name for name in dir(kind) if name.startswith(_SAVED)])
            self._saving[kind] = names
        for name in names:
            try:
                saved = getattr(node, name)
                for item in saved if isinstance(saved, (tuple, list)) else (saved,):
                    kept = getattr(item, "data", None)
                    if isinstance(kept, Tensor):
                        yield kept
            except RuntimeError:
                # It was released already.
                continue
        if isinstance(node, _FROM_PYTHON):
            yield from [name for name in vars(node).values() if isinstance(name, Tensor)]


def _named_tensors(state: Any, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _named_tensors(value, str(key))
    elif isinstance(state, (list, tuple)):
        for item in state:
            yield from _named_tensors(item, name)


def _note(tensor: Tensor, phase: Phase, name: str = "", module: ModuleName | None = None) -> None:
    for item in _inner(tensor):
        block = _block_of(item)
        allocation = None if block is None else block.allocation
        # Autograd keeps weights, too, but not those that FSDP has gathered: it drops them.
        is_gathered = block is not None and block.is_gathered and phase is Phase.ACTIVATIONS
        if allocation is not None and not is_gathered:
            allocation.is_for(phase)
            if allocation.phase is phase:
                # Names get longer when an outer module is seen.
                if name:
                    allocation.name = name
                if module is not None:
                    allocation.module = module


def _inner(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that a wrapper, as a DTensor is, consists of; others themselves."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten(tensor)[0]:
        inner = getattr(tensor, name, None)
        if isinstance(inner, Tensor):
            yield from _inner(inner)


def _block_of(tensor: Tensor) -> MemoryBlock | None:
    try:
        residence = getattr(_storage_of(tensor), "_kernbench", None)
    except (NotImplementedError, RuntimeError, ValueError):
        # It has no storage, or none yet.
        return None
    return None if residence is None else residence.block
