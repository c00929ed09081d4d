"""What a candidate's text says of it before it runs: tricks that no honest kernel needs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_CUDA = (
    "load_inline", "cpp_extension", "RawKernel", "RawModule", "nvrtc", "pycuda", "cudaLaunchKernel",
)  # fmt: skip
_GUARDED = sys.stdlib_module_names | {"torch", "triton", "kernbench", "numpy"}
"""Modules whose names a candidate has no reason to replace."""
_SETTINGS = ("backends", "_dynamo", "_inductor", "config", "knobs", "runtime", "environ")
"""Parts of them that are there to be set."""
_REPLACING = ("setattr", "delattr", "patch.object", "unittest.mock.patch.object")
_WATCHES = {
    "gc.get_objects": "it searches the memory of its process (gc.get_objects)",
    "gc.get_referrers": "it searches the memory of its process (gc.get_referrers)",
    "sys._getframe": "it looks at who calls it (sys._getframe)",
    "sys._current_frames": "it looks at who calls it (sys._current_frames)",
    "inspect.stack": "it looks at who calls it (inspect.stack)",
    "inspect.currentframe": "it looks at who calls it (inspect.currentframe)",
}


@dataclass
class Scan:
    """What a text says."""

    tricks: list[str] = field(default_factory=list)
    """Each a sentence."""
    cuda: str = ""
    """What of CUDA C++ it names; empty if nothing."""
    kernels: set[str] = field(default_factory=set)
    """Functions with Triton's or Gluon's ``jit``."""
    error: str = ""


def scan(text: str) -> Scan:
    """Return what the text of a candidate says of it."""
    result = Scan()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        result.error = f"it is no Python: {error}"
        return result
    modules: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                modules[name.asname or name.name] = f"{node.module}.{name.name}"
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            called = [getattr(expr, "func", expr) for expr in node.decorator_list]
            marks = {_dotted(expr, modules) for expr in called}
            if any(mark.endswith((".jit", "gluon.jit")) for mark in marks):
                result.kernels.add(node.name)
        for line in _tricks_of(node, modules):
            if line not in result.tricks:
                result.tricks.append(line)
    names = {module.split(".")[-1] for module in modules.values()} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
    parts = {part for module in modules.values() for part in module.split(".")}
    result.cuda = next((item for item in _CUDA if item in names | parts), "")
    return result


def _dotted(node: Any, modules: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(modules.get(node.id, node.id if not parts else f"<{node.id}>"))
    return ".".join(reversed(parts))


def _tricks_of(node: ast.AST, modules: dict[str, str]) -> Iterator[str]:
    yield from _assigned(node, modules)
    if isinstance(node, ast.Call):
        yield from _called_for(node, modules)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        if any(item.split(".")[0] == "kernbench" for item in names):
            yield f"it looks for kernbench (line {node.lineno})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        if len(text) < 80 and "kernbench" in text.lower() and " " not in text.strip():
            yield f"it looks for kernbench (line {node.lineno})"


def _assigned(node: ast.AST, modules: dict[str, str]) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.Delete)):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
    for target in targets:
        name = _dotted(target, modules)
        if isinstance(target, ast.Attribute) and _is_guarded(name):
            yield f"it replaces {name} (line {target.lineno})"


def _called_for(node: ast.Call, modules: dict[str, str]) -> Iterator[str]:
    name = _dotted(node.func, modules)
    first = node.args[0] if node.args else None
    if name in _REPLACING and first is not None:
        owner = _dotted(first, modules)
        if _is_guarded(f"{owner}.x"):
            yield f"it replaces a part of {owner} (line {node.lineno})"
    elif name.endswith("mock.patch") and isinstance(first, ast.Constant):
        yield f"it replaces {first.value!s} (line {node.lineno})"
    elif name.startswith("torch.library.") and isinstance(first, ast.Constant):
        if str(first.value).partition("::")[0] in ("aten", "prims"):
            yield f"it replaces operations of PyTorch by {name} (line {node.lineno})"
    elif name in _WATCHES:
        yield f"{_WATCHES[name]} (line {node.lineno})"


def _is_guarded(name: str) -> bool:
    parts = name.split(".")
    return parts[0] in _GUARDED and not any(part in _SETTINGS for part in parts)
