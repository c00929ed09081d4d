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
    from kernbench.torch_bridge.placement.names import unobserved
    from kernbench.torch_bridge.processes.call_counts import unseen
    from kernbench.torch_bridge.processes.process import add_to_report, remark
    from kernbench.torch_bridge.processes.process import current as current_process


_WITH_TORCH = {
    "CollectiveWork": "c10d",
    "NcclGroup": "c10d",
    "SimulatedGroup": "c10d",
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


def run_torchrun(
    context: RuntimeContext,
    path: Path,
    code: CodeType,
    argv: list[str],
    nprocs: int,
    *,
    shown: Collection[int] | None = None,
    with_rank: bool = False,
    module: str | None = None,
    variables: Mapping[str, str] | None = None,
    private: Collection[str] = (),
    num_nodes: int = 1,
    max_restarts: int = 0,
    log_dir: Path | None = None,
    hash_seeds: bool = False,
    is_last: bool = False,
) -> None:
    """Run a program as ``torchrun --nproc-per-node nprocs FILE ARGS`` would, inside ``context``.

    With several nodes there are ``nprocs`` ranks on each, as many as a node of the machine has
    devices (ADR-0062).

    ``argv`` becomes the program's ``sys.argv``: its file and its arguments. ``shown`` are the ranks
    whose output is shown (None: all), each line prefixed with the rank's number if ``with_rank``;
    in the folder ``log_dir`` a file per node has all of it.
    ``module`` is the program's name if it is run as ``python -m`` would; ``variables`` override the
    environment variables of the launcher. Each rank imports the packages ``private`` for itself, in
    addition to those that it would import for itself anyway (ADR-0113). With ``hash_seeds``
    each has its own order of sets of strings in what it imports for itself (ADR-0227).

    When a rank fails, all are started again, up to ``max_restarts`` times, with
    ``TORCHELASTIC_RESTART_COUNT`` in their environment; where they go on is up to the program.
    If the real process runs no program after this one (``is_last``), one process of it does not
    pay for leaving registries of shared libraries as they were.

    Raises:
        UnknownNameError: A package of ``private`` does not exist.
        TorchVersionError: PyTorch is missing, or a release that the bridge does not know.
        UsageError: A package of ``private`` must be shared by all ranks, there are more ranks on a
        node than PyTorch can number devices, or ranks do not fill the nodes.
    """
    check_ranks(nprocs, f"run_torchrun(nprocs={nprocs})")
    check_nodes(context.run.machine, nprocs, num_nodes)
    check_torch()
    check_private(private, path.parent)
    with importing_torch():
        from kernbench.torch_bridge.front.programs import run_torchrun as run

    run(
        context,
        path,
        code,
        argv,
        nprocs,
        shown=shown,
        with_rank=with_rank,
        module=module,
        variables=variables or {},
        private=private,
        num_nodes=num_nodes,
        max_restarts=max_restarts,
        log_dir=log_dir,
        has_seeds=hash_seeds,
        is_last=is_last,
    )
