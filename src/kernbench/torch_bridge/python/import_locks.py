"""Import locks: each process has its own, and waiting for one yields to other ranks.

Python locks a module's name while it is imported. A module that a rank imports for itself may wait
for other ranks, which then import the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.python.locks import WaitingLock

_bootstrap: Any = sys.modules["_frozen_importlib"]
_lock_of_name = _bootstrap._get_module_lock


def install(patches: Patches, is_shared: Callable[[str], bool]) -> None:
    """Let imports of simulated processes wait in simulated time."""

    def lock_of(name: str) -> Any:
        process = HERE.process
        if process is None or HERE.is_foreign:
            return _lock_of_name(name)
        return lock_for_all(name if is_shared(name) else f"{name} of process {id(process)}")

    patches.set(_bootstrap, "_get_module_lock", lock_of)


def lock_for_all(name: str) -> Any:
    """Return the lock of a name for all processes, with the methods that ``importlib`` needs."""
    lock = _lock_of_name(name)
    if not isinstance(lock.wakeup, WaitingLock):
        lock.wakeup = WaitingLock()
    return lock
