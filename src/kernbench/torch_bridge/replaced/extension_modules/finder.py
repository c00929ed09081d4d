"""Imports of extension modules of CUDA C++, whose operators are defined in place of loading."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.of_all import library_of_all
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.processes.registrations import BACKEND, COMPOSITES, SHARED, Kernel
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    bind,
    definition_of,
    shapes_of,
)
from kernbench.torch_bridge.replaced.extension_modules.shared_objects import (
    needs_cuda,
    operators_of,
)

_ON_HOST = COMPOSITES[-1]
_OF_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_IN_CODE = {"torchvision": (f"nms{_OF_BOXES}", f"qnms{_OF_BOXES}")}
"""Operators that packages ask for without a look whether their shared object was loaded, and whose
schemas are no text of it, but put together by its code."""


def install(patches: Patches) -> None:
    """Let programs load extension modules that are linked with libraries of CUDA."""
    operators = DefinedOperators(patches)
    create, execute = ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module
    names: set[str] = set()

    def create_module(loader: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType | None:
        return None if needs_cuda(Path(loader.path)) else create(loader, spec)

    def exec_module(loader: ExtensionFileLoader, module: ModuleType) -> None:
        file = Path(loader.path)
        if not needs_cuda(file):
            execute(loader, module)
            return
        if not operators_of(file).schemas:
            raise ModuleNotFoundError(
                f"{module.__name__}: {file.name} is linked with libraries of CUDA and registers no "
                "operators, so that kernbench cannot stand in for it; use the package without it",
                name=module.__name__,
            )
        operators.define(file, module.__name__)
        names.add(module.__name__)

    # Whether a program imports them or asks for a loader itself.
    patches.set(ExtensionFileLoader, "create_module", create_module)
    patches.set(ExtensionFileLoader, "exec_module", exec_module)
    load = torch.ops.load_library

    def load_library(path: Any) -> None:
        file = Path(path)
        if not file.is_file() or not needs_cuda(file):
            load(path)
            return
        package = file.parent.name
        if package in _IN_CODE:
            for name in _IN_CODE[package]:
                operators.define_one(package, name, package)
            raise OSError(f"{file} needs CUDA, and its text has not all operators' schemas")
        operators.define(file, package)

    patches.set(torch.ops, "load_library", load_library)

    def forget() -> None:
        for item in names:
            sys.modules.pop(item, None)

    patches.on_close(forget)


class DefinedOperators:
    """The operators that were defined for a run."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._done: set[Path] = set()
        self._libraries: dict[str, torch.library.Library] = {}

    def define(self, file: Path, module: str) -> None:
        """Define the operators of a shared object, once for all ranks."""
        if file in self._done:
            return
        self._done.add(file)
        namespaces, schemas = operators_of(file)
        for own, schema in schemas:
            for namespace in (own,) if own else namespaces:
                self.define_one(namespace, schema, module)

    def define_one(self, namespace: str, schema: str, module: str) -> None:
        """Define an operator, by kernbench's definition or as one that says that it has none."""
        name = schema.partition("(")[0]
        full_name, (_, _, overload) = f"{namespace}::{name}", name.partition(".")
        if torch._C._dispatch_has_kernel(full_name):
            return
        library = self._libraries.get(namespace)
        if library is None:
            library = self._libraries[namespace] = library_of_all(namespace, "FRAGMENT")
            self._patches.on_close(library._destroy)
            self._patches.on_close(SHARED.remove_for_all, library)
        library.define(schema)
        packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0])
        func = getattr(packet, overload or "default")
        definition = definition_of(namespace, name)
        if definition is None:
            refuse = _refusing(func, module)
            library.impl(name, refuse, _ON_HOST)
            SHARED.add(full_name, BACKEND, Kernel(library, refuse, False))
        elif definition.on_host:
            kernel = bind(definition, func)
            library.impl(name, kernel, _ON_HOST)
            SHARED.add(full_name, BACKEND, Kernel(library, kernel, False))
        else:
            library.impl(name, shapes_of(definition, func), "Meta")
            SHARED.add(full_name, BACKEND, Kernel(library, bind(definition, func), False))


def _refusing(func: Any, module: str) -> Callable[..., Any]:
    """Return the kernel of an operator without a definition."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        name = func._name.replace("::", ".")
        current().session.lacking_operators[name] = None
        raise UnsupportedTorchError(
            f"{name}: kernbench has no definition of this operator of {module}, whose CUDA C++ no "
            f"simulated device runs: {func._schema}; choose another path of "
            f"{module.partition('.')[0]}, or register a kernel of PyTorch's operations or Triton "
            f'by torch.library.impl("{func._name}", "CUDA")'
        )

    return refuse
