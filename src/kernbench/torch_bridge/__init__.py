"""Unmodified PyTorch programs on simulated devices. Importing this does not import PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from kernbench.on_demand import asked_for
from kernbench.torch_bridge.base.device_limit import check_nodes, check_ranks
from kernbench.torch_bridge.base.versions import (
    KERNELS_VARIABLE,
    SUPPORTED,
    TorchVersionError,
    check_torch,
    importing_torch,
)
from kernbench.torch_bridge.python.packages import check_private

if TYPE_CHECKING:
    from kernbench.runtime_api import Player, RuntimeContext
    from kernbench.torch_bridge.base.modes import Mode
    from kernbench.torch_bridge.base.operations import Operation
    from kernbench.torch_bridge.base.operations import describe as describe_operation
    from kernbench.torch_bridge.c10d import CollectiveWork, NcclGroup, SimulatedGroup
    from kernbench.torch_bridge.compiler.graphed import Graphs
    from kernbench.torch_bridge.front.programs import run_torchrun
    from kernbench.torch_bridge.placement.names import unobserved
    from kernbench.torch_bridge.processes.call_counts import unseen
    from kernbench.torch_bridge.processes.process import add_to_report, remark
    from kernbench.torch_bridge.processes.process import current as current_process


_WITH_TORCH = {
    "CollectiveWork": "c10d",
    "NcclGroup": "c10d",
    "SimulatedGroup": "c10d",
    "Graphs": "compiler.graphed",
    "run_torchrun": "front.programs",
    "current_process": "processes.process:current",
    "Mode": "base.modes",
    "Operation": "base.operations",
    "describe_operation": "base.operations:describe",
    "add_to_report": "processes.process",
    "remark": "processes.process",
    "unobserved": "placement.names",
    "unseen": "processes.call_counts",
}
"""What imports PyTorch, imported when it is asked for."""


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch."""
    if name in _WITH_TORCH:
        check_torch()
    with importing_torch():
        return asked_for(__name__, _WITH_TORCH, name)


def import_programs() -> None:
    """Import PyTorch and all that programs need, so that the first of them starts soon.

    Raises:
        TorchVersionError: PyTorch is missing, or a release that the bridge does not know.
    """
    check_torch()
    with importing_torch():
        importlib.import_module("kernbench.torch_bridge.front.programs")


def torch_player() -> type[Player]:
    """Return what does again what PyTorch programs did.

    Raises:
        TorchVersionError: PyTorch is missing, or a release that the bridge does not know.
    """
    check_torch()
    with importing_torch():
        from kernbench.torch_bridge.kept.player import TorchPlayer

    return TorchPlayer


def package_operators(folder: Path) -> dict[Path, dict[str, bool]]:
    """Return whether kernbench defines each operator of a package's extension modules.

    By shared object, of those that need CUDA, relative to where the package is installed.

    Raises:
        TorchVersionError: PyTorch is missing, or a release that the bridge does not know.
    """
    check_torch()
    with importing_torch():
        import kernbench.torch_bridge.c10d.peer_reductions
        from kernbench.torch_bridge.replaced.extension_modules.definitions import (
            operators_of_package,
        )

    return dict(operators_of_package(folder))
