"""The memory of a worker process: copies of what its parent has, where the program may change it.

All processes share one real process. A worker of a rank uses the rank's modules, whose values are
exchanged for its own while it runs (ADR-0177).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing import process as processes
from types import ModuleType
from typing import Any

import torch.utils.data._utils.worker as loaders

from kernbench.torch_bridge.python.pipes import copied


class Memory:
    """A worker's own values of the modules of its program, and of what it was given."""

    def __init__(self, modules: Sequence[ModuleType], argument: Mapping[str, Any]) -> None:
        own = frozenset(("__main__", "__mp_main__", *(module.__name__ for module in modules)))
        self._spaces = [vars(module) for module in modules]
        values = [
            {name: value for name, value in space.items() if not name.startswith("__")}
            for space in self._spaces
        ]
        try:
            *mine, self.argument = copied([*values, dict(argument)], own)
        except Exception:
            # Something cannot be copied: then each value for itself, as far as it can.
            mine = [_each_copied(item, own) for item in values]
            self.argument = _each_copied(argument, own)
        self._mine = [{**space, **copies} for space, copies in zip(self._spaces, mine, strict=True)]
        self._theirs: list[dict[str, Any]] = []
        self._shown: list[tuple[Any, str, Any]] = [(loaders, "_worker_info", None)]

    def be(self, child: processes.BaseProcess) -> None:
        """Let ``multiprocessing.current_process`` return a process."""
        self._shown.append((processes, "_current_process", child))

    def show(self) -> None:
        """Put the worker's values in place of its parent's."""
        self._theirs = [dict(space) for space in self._spaces]
        self._put(self._mine)

    def hide(self) -> None:
        """Put the parent's values back."""
        self._mine = [dict(space) for space in self._spaces]
        self._put(self._theirs)

    def _put(self, values: Sequence[Mapping[str, Any]]) -> None:
        for space, item in zip(self._spaces, values, strict=True):
            space.clear()
            space.update(item)
        shown = [(owner, name, getattr(owner, name)) for owner, name, _ in self._shown]
        for owner, name, value in self._shown:
            setattr(owner, name, value)
        self._shown = shown


def _each_copied(values: Mapping[str, Any], own: frozenset[str]) -> dict[str, Any]:
    result = {}
    for name, value in values.items():
        try:
            result[name] = copied(value, own)
        except Exception:
            result[name] = value
    return result
