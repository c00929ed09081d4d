"""TorchScript knows PyTorch's functions by their identity, also those that the bridge replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.jit._builtins
import torch.jit._recursive

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.pinned import is_pinned, pin_memory
from kernbench.torch_bridge.device.tensors import cpu, cuda, device_of, get_device, on_device, to
from kernbench.torch_bridge.placement.names import CPU, DEVICE_TYPE, META
from kernbench.torch_bridge.processes.of_all import library_of_all

_compile = torch.jit._recursive.try_compile_fn
_OPERATIONS: dict[int, str] = torch.jit._builtins._get_builtin_table()
"""Names of operations by the identities of functions; made before any of these is replaced."""
_ASKED: dict[str, tuple[str, Callable[..., Any]]] = {
    "aten::pin_memory": ("pin_memory(Tensor x, Device? device=None) -> Tensor", pin_memory),
    "aten::is_pinned": ("is_pinned(Tensor x, Device? device=None) -> bool", is_pinned),
    "aten::type_as": (
        "type_as(Tensor x, Tensor other) -> Tensor",
        lambda x, other: to(x, device_of(other), other.dtype),
    ),
    "aten::to.other": (
        "to_other(Tensor x, Tensor other, bool non_blocking=False, bool copy=False) -> Tensor",
        lambda x, other, non_blocking=False, copy=False: to(
            x, device_of(other), other.dtype, non_blocking, copy
        ),
    ),
    "prim::device": ("device_of(Tensor x) -> Device", device_of),
    "prim::is_cuda": ("is_cuda(Tensor x) -> bool", lambda x: device_of(x).type == DEVICE_TYPE),
    "prim::is_cpu": ("is_cpu(Tensor x) -> bool", lambda x: device_of(x).type == "cpu"),
    "aten::get_device": ("get_device(Tensor x) -> int", get_device),
    "aten::cpu": ("cpu(Tensor x) -> Tensor", cpu),
    "aten::cuda": ("cuda(Tensor x) -> Tensor", cuda),
    "prim::fork": (
        "done(Any value) -> Future(Any)",
        lambda value: torch.jit.fork(lambda: value),
    ),
    "aten::*_like": (
        "like(Tensor x, Device? device) -> Tensor",
        # C++ names its CPU also for what belongs where the operand is.
        lambda x, device: torch.empty_like(x, device=META) if device == CPU and on_device(x) else x,
    ),
    "aten::to": (
        "to(Tensor x, Device? device, ScalarType? dtype=None, bool non_blocking=False, "
        "bool copy=False) -> Tensor",
        lambda x, device, dtype=None, non_blocking=False, copy=False: to(
            x, x.device if device is None else device, dtype or x.dtype, non_blocking, copy
        ),
    ),
}
"""What a script asks a tensor, or asks for, which C++ would answer by its own device. Inputs of
overloads with more of them, as a memory format, are left out."""


def install(patches: Patches) -> None:
    """Let scripts call what has been replaced so far: they run PyTorch's own functions."""
    own: dict[int, Any] = {}
    for replaced in patches.replaced:
        before, number = id(replaced.before), id(replaced.value)
        own[number] = own.get(before, replaced.before)
        if before in _OPERATIONS and number not in _OPERATIONS:
            _OPERATIONS[number] = _OPERATIONS[before]
            patches.on_close(_OPERATIONS.pop, number)

    def compile_own(function: Any, place: Any) -> Any:
        return _compile(own.get(id(function), function), place)

    patches.set(torch.jit._recursive, "try_compile_fn", compile_own)
    _ask_simulated(patches)


def _ask_simulated(patches: Patches) -> None:
    """Let compiled scripts ask tensors for their simulated device."""
    library = library_of_all("kernbench", "DEF")
    patches.on_close(library._destroy)
    for schema, answer in _ASKED.values():
        library.define(schema)
        # Above all modes, which would take it for an operation of the device.
        for key in ("PythonTLSSnapshot", "CPU", "CompositeExplicitAutograd"):
            library.impl(schema.partition("(")[0], answer, key)

    def compiled(original: Any, *, is_unit: bool = False) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_unit:
                # C++ looks names up where Python calls it, of which this is one call more.
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            result = original(*args, **kwargs)
            for part in _parts_of(args[0] if result is None else result):
                _run_in_turn(part.graph)
                _replace(part.graph, part.graph)
            return result

        return call

    for owner, name in (
        (torch._C.ScriptModule, "_define"),
        (torch._C, "_jit_script_compile"),
        (torch._C, "_jit_script_compile_overload"),
        (torch._C, "_run_emit_module_hook"),
        (torch.jit, "load"),
    ):
        patches.set(owner, name, compiled(getattr(owner, name)))
    for name in ("__init__", "define"):
        own = getattr(torch._C.CompilationUnit, name)
        patches.set(torch._C.CompilationUnit, name, compiled(own, is_unit=True))


def _parts_of(script: Any) -> list[Any]:
    """Return what has a graph of a compiled function, of C++'s module, or of a loaded one."""
    if isinstance(script, torch.jit.ScriptModule):
        return [method for part in script.modules() for method in _parts_of(part._c)]
    if isinstance(script, torch._C.CompilationUnit):
        return list(script.get_functions())
    if not isinstance(script, torch._C.ScriptModule):
        return [script]
    return [script._get_method(name) for name in script._method_names()]


def _run_in_turn(graph: Any) -> None:
    """Run what is forked where it is: C++ would in a thread of its own, which is of no process."""
    while (node := graph.findNode("prim::fork")) is not None:
        with graph.insert_point_guard(node):
            result = graph.insertGraph(node.g("Subgraph"), list(node.inputs()))
        _put(graph, node, "done", result)


def _replace(graph: Any, block: Any) -> None:
    """Replace nodes of a block, and of those inside."""
    for node in list(block.nodes()):
        for inner in node.blocks():
            _replace(graph, inner)
        inputs = list(node.inputs())
        kind = node.kind()
        if kind == "aten::to" and "Device" not in str(inputs[1].type()):
            kind += ".other" if str(inputs[1].type()) == "Tensor" else ".dtype"
        if kind.endswith("_like") or kind.startswith("aten::new_"):
            for device in inputs:
                if "Device" in str(device.type()):
                    like = _made(graph, node, "like", [inputs[0], device], inputs[0].type())
                    node.replaceInput(0, like)
        if kind in _ASKED:
            schema = _ASKED[kind][0]
            _put(graph, node, schema.partition("(")[0], inputs[: schema.count(",") + 1])


def _put(graph: Any, node: Any, name: str, inputs: list[Any]) -> None:
    """Put an operation of ours in the place of a node."""
    node.output().replaceAllUsesWith(_made(graph, node, name, inputs, node.output().type()))
    node.destroy()


def _made(graph: Any, node: Any, name: str, inputs: list[Any], kind: Any) -> Any:
    """Return what an operation of ours gives before a node."""
    ours = graph.create(f"kernbench::{name}", inputs, 1)
    ours.output().setType(kind)
    ours.insertBefore(node)
    return ours.output()
