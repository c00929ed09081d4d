"""Loggers that a rank changes: their levels and handlers become its own (ADR-0095)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging import Logger
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE, Process

_NAMES = frozenset({"level", "propagate", "disabled", "handlers", "filters"})
_CHANGING = ("addHandler", "removeHandler", "addFilter", "removeFilter")
_set_attribute = Logger.__setattr__
_is_enabled = Logger.isEnabledFor
_disable = logging.disable


class ProcessLoggers:
    """Exchanges loggers: the real process holds the settings of one process at a time."""

    def __init__(self, base: Process) -> None:
        self._base = base
        self._loaded = base
        self._common: dict[Logger, tuple[Any, ...]] = {}
        """Loggers that some rank has changed, with their settings for the others."""
        self._common_disable = logging.root.manager.disable

    def install(self, patches: Patches) -> None:
        """Keep the changes of each rank separate, until the run ends."""
        patches.on_close(self._forget)
        # Functions bind to the logger; methods of this object would not.
        patches.set_all(
            Logger,
            __setattr__=lambda logger, name, value: self._assign(logger, name, value),
            isEnabledFor=lambda logger, level: self._is_enabled_for(logger, level),
        )
        for name in _CHANGING:
            patches.set(Logger, name, self._changing(getattr(Logger, name)))
        patches.set(logging, "disable", self._disable)

    def load(self, process: Process) -> None:
        """Make a process's loggers current."""
        before = self._loaded
        if before is process:
            return
        if self._common:
            before.loggers = {logger: _state_of(logger) for logger in self._common}
            for logger, common in self._common.items():
                _show(logger, process.loggers.get(logger, common))
            manager = logging.root.manager
            before.logging_disable = manager.disable
            wanted = process.logging_disable
            manager.disable = self._common_disable if wanted is None else wanted
        self._loaded = process

    def _assign(self, logger: Logger, name: str, value: Any) -> None:
        if name in _NAMES and name in logger.__dict__:
            self._meet(logger)
        _set_attribute(logger, name, value)

    def _meet(self, logger: Logger) -> None:
        """Record a logger that the rank is about to change, unless a library is being set up."""
        process = HERE.process
        if process is not None and process is not self._base and logger not in self._common:
            self._common[logger] = _state_of(logger)

    def _changing(self, original: Callable[..., None]) -> Callable[..., None]:
        def change(logger: Logger, what: Any) -> None:
            self._meet(logger)
            original(logger, what)

        change.__name__ = original.__name__
        return change

    def _is_enabled_for(self, logger: Logger, level: int) -> bool:
        if not self._common:
            return _is_enabled(logger, level)
        # Its cache may hold another rank's levels.
        if logger.disabled or logger.manager.disable >= level:
            return False
        return level >= logger.getEffectiveLevel()

    def _disable(self, level: int = logging.CRITICAL) -> None:
        self._meet(logging.root)
        _disable(level)

    def _forget(self) -> None:
        for logger, common in self._common.items():
            _show(logger, common)
        _disable(self._common_disable)


def _state_of(logger: Logger) -> tuple[Any, ...]:
    lists = list(logger.handlers), list(logger.filters)
    return (logger.level, logger.propagate, logger.disabled, *lists)


def _show(logger: Logger, state: tuple[Any, ...]) -> None:
    level, propagate, disabled, handlers, filters = state
    logger.__dict__.update(
        level=level,
        propagate=propagate,
        disabled=disabled,
        handlers=list(handlers),
        filters=list(filters),
    )
