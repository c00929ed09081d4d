"""State that shared libraries keep per process: each rank has its own.

Some libraries are imported once for all ranks (``packages``), so what they keep about "this"
process must be exchanged when another rank resumes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any
from weakref import WeakSet

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import Process

Fresh = Callable[[Process], Any]
"""Makes a process's initial value."""


def _made_by(make: Callable[[], Any]) -> Fresh:
    return lambda process: make()


STATES: Mapping[str, Mapping[str, Fresh]] = {
    "accelerate.state": {
        "PartialState._shared_state": _made_by(dict),
        "AcceleratorState._shared_state": _made_by(dict),
        "GradientState._shared_state": _made_by(dict),
    },
    "torch.distributed.fsdp._debug_utils": {
        "SimpleProfiler.results": _made_by(lambda: defaultdict(float)),
        "SimpleProfiler.profiling": _made_by(set),
    },
    "torch.nn.utils.parametrize": {"_cache": _made_by(dict), "_cache_enabled": _made_by(int)},
    # The bars that are shown, one under another, and the thread that looks after them.
    "tqdm.std": {"tqdm._instances": _made_by(WeakSet), "tqdm.monitor": lambda process: None},
}
"""Attributes, by their module."""


class LibraryStates:
    """Exchanges the state: libraries hold the values of one simulated process at a time."""

    def __init__(self, base: Process) -> None:
        self._loaded = base
        self._known: list[tuple[Any, str, Fresh]] = []
        """Owners and names of the exchanged attributes, and what makes their first values."""
        self._owners: list[Any] = []
        self._names: list[str] = []
        self._patches = Patches()

    def install(self, patches: Patches) -> None:
        """Exchange state from now on, and restore the original values at the end."""
        self._patches = patches
        for name in STATES:
            if name in sys.modules:
                self.meet(sys.modules[name])

    def meet(self, module: ModuleType) -> None:
        """Add the state of a library's module that was imported."""
        for path, fresh in STATES.get(module.__name__, {}).items():
            place, _, name = path.rpartition(".")
            owner = attrgetter(place)(module) if place else module
            self._patches.set(owner, name, fresh(self._loaded))
            self._known.append((owner, name, fresh))
            self._owners.append(owner)
            self._names.append(name)

    def load(self, process: Process) -> None:
        """Show a process's values."""
        before = self._loaded
        if before is process:
            return
        known, wanted = self._known, process.library_state
        # Every switch of ranks comes by here: no Python loop as long as nobody keeps anything.
        shown = list(map(getattr, self._owners, self._names))
        if len(wanted) < len(known):
            wanted += [fresh(process) for _, _, fresh in known[len(wanted) :]]
        if any(shown) or any(wanted):
            before.library_state = shown
            for (owner, name, _), value in zip(known, wanted, strict=True):
                setattr(owner, name, value)
        else:
            # Most processes keep nothing, and a process without values may take another's list.
            before.library_state = wanted
        self._loaded = process
