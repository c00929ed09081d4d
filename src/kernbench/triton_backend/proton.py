"""Proton, Triton's profiler, while a run is active: its trees are of modeled time (ADR-0050 D8)."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from triton.runtime import driver as triton_driver

from kernbench.errors import UsageError
from kernbench.outputs import write_text
from kernbench.triton_backend.driver import DEVICE_KEY, KernbenchDriver

Path = tuple[str, ...]

_SCOPES: ContextVar[Path] = ContextVar("kernbench_proton_scopes", default=())
_IS_LAUNCHING: ContextVar[bool] = ContextVar("kernbench_proton_launching", default=False)
"""Whether the innermost scope is that of a launch, which its kernel has named."""
_LIBRARY = "triton._C.libproton"
_PROFILER = "triton.profiler"
_NAME = "kernbench"


@dataclass(slots=True)
class _Session:
    """What one ``proton.start`` has recorded."""

    name: str
    is_active: bool = True
    metrics: dict[Path, dict[str, float]] = field(default_factory=dict)
    launches: list[tuple[Path, Callable[[], float]]] = field(default_factory=list)

    def add(self, path: Path, metrics: Mapping[str, float]) -> None:
        known = self.metrics.setdefault(path, {})
        for name, value in metrics.items():
            known[name] = known.get(name, 0) + value


class ModeledProton:
    """The functions of ``libproton`` that Triton's Python code calls."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}
        self._count = 0
        self._paths: dict[int, Path] = {}

    @property
    def is_recording(self) -> bool:
        """Whether any session has been started."""
        return bool(self._sessions)

    def select_profiler_from_triton_backend(self, backend: str) -> str:
        return backend

    def get_available_profilers(self) -> list[str]:
        return [_NAME]

    def get_context_depth(self, session: int = 0) -> int:
        return len(_SCOPES.get())

    def start(self, name: str, context: str, data: str, profiler: str, mode: str = "") -> int:
        """Begin a session.

        Raises:
            UsageError: It asks for what has no modeled counterpart.
        """
        for option, asked, known in (
            ("context", context, "shadow"),
            ("data", data, "tree"),
            ("backend", profiler, _NAME),
            ("mode", mode, ""),
        ):
            if asked != known:
                raise UsageError(
                    f"proton.start({option}={asked!r}) has no modeled counterpart, only "
                    f"{known or None!r}; for a timeline, give the run --trace"
                )
        self._count += 1
        self._sessions[self._count - 1] = _Session(name)
        return self._count - 1

    def activate(self, session: int) -> None:
        self._session(session).is_active = True

    def activate_all(self) -> None:
        for session in self._sessions.values():
            session.is_active = True

    def deactivate(self, session: int, flushing: bool = False) -> None:
        self._session(session).is_active = False

    def deactivate_all(self, flushing: bool = False) -> None:
        for session in self._sessions.values():
            session.is_active = False

    def finalize(self, session: int, output_format: str = "") -> None:
        """Write what a session has recorded to ``NAME.hatchet``."""
        result = self._session(session)
        del self._sessions[session]
        _write(result, output_format)

    def finalize_all(self, output_format: str = "") -> None:
        for session in list(self._sessions):
            self.finalize(session, output_format)

    def record_scope(self) -> int:
        self._count += 1
        return self._count

    def enter_scope(self, scope: int, name: str) -> None:
        path = (*_SCOPES.get(), name)
        _SCOPES.set(path)
        self._paths[scope] = path

    def exit_scope(self, scope: int, name: str) -> None:
        _SCOPES.set(self._paths.pop(scope, _SCOPES.get())[:-1])

    def enter_op(self, scope: int, name: str) -> None:
        self.enter_scope(scope, name)
        _IS_LAUNCHING.set(True)

    def exit_op(self, scope: int, name: str) -> None:
        _IS_LAUNCHING.set(False)
        self.exit_scope(scope, name)

    def add_metrics(
        self, scope: int, scalars: Mapping[str, Any], tensors: Mapping[str, Any] | None = None
    ) -> None:
        path = self._paths.get(scope)
        if path is not None:
            numbers = {name: float(value) for name, value in scalars.items()}
            for session in self._active():
                session.add(path, numbers)

    def set_metric_kernels(self, *args: Any) -> None:
        """Do nothing: no records are buffered on a device."""

    def enter_state(self, name: str) -> None:
        """Do nothing: only kernels of the program are launched."""

    def exit_state(self) -> None:
        """Do nothing, as above."""

    def note(self, name: str, time_ns: Callable[[], float] | None) -> None:
        """Record a launch of the kernel ``name``; ``time_ns`` is called at the end."""
        if time_ns is None:
            return
        path = _SCOPES.get() if _IS_LAUNCHING.get() else (*_SCOPES.get(), name)
        for session in self._active():
            session.launches.append((path, time_ns))

    def _active(self) -> list[_Session]:
        return [session for session in self._sessions.values() if session.is_active]

    def _session(self, session: int) -> _Session:
        result = self._sessions.get(session)
        if result is None:
            raise UsageError(
                f"proton has no session {session}; those that were started and not finalized are "
                f"{', '.join(map(str, self._sessions)) or 'none'}"
            )
        return result


PROTON = ModeledProton()


class _ProtonLibrary:
    """Stands in for ``libproton``: an active run answers, or else the library itself."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if isinstance(triton_driver._active, KernbenchDriver):
            ours = getattr(PROTON, name, None)
            if ours is not None:
                return ours
        return getattr(self._library, name)


def install() -> None:
    """Make Triton's profiler ask the active run (idempotent)."""
    try:
        package = import_module(_LIBRARY)
    except ImportError:
        return  # a Triton without its profiler
    if not isinstance(package.proton, _ProtonLibrary):
        _replace(package.proton, _ProtonLibrary(package.proton))


def remove() -> None:
    """Put the library back."""
    package = sys.modules.get(_LIBRARY)
    if package is not None and isinstance(package.proton, _ProtonLibrary):
        _replace(package.proton, package.proton._library)


def _replace(before: Any, after: Any) -> None:
    """Replace the library in its package and in the modules that have imported it."""
    sys.modules[_LIBRARY].proton = after  # type: ignore[attr-defined]
    for name in _names_in_profiler() if _PROFILER in sys.modules else ():
        module = sys.modules.get(name)
        if getattr(module, "libproton", None) is before:
            module.libproton = after  # type: ignore[union-attr]


@cache
def _names_in_profiler() -> tuple[str, ...]:
    """Return the names of the modules of Triton's profiler; few are imported.

    Each run begins and ends with a search for them, and a process may have thousands of others.
    """
    (folder,) = map(pathlib.Path, sys.modules[_PROFILER].__path__)
    paths = (path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py"))
    return tuple(".".join((_PROFILER, *parts)).removesuffix(".__init__") for parts in paths)


def _write(session: _Session, output_format: str) -> None:
    if output_format not in ("", "hatchet"):
        raise UsageError(f"proton.finalize writes hatchet files only, not {output_format!r}")
    timed: dict[Path, tuple[float, int]] = {}
    for path, time_ns in session.launches:
        before, count = timed.get(path, (0.0, 0))
        timed[path] = before + time_ns(), count + 1
    root = _node("ROOT", {"count": 0, "time (ns)": 0})
    for path in sorted({*session.metrics, *timed}):
        node = _at(root, path)
        node["metrics"].update(session.metrics.get(path, {}))
        if path in timed:
            total_ns, count = timed[path]
            node["metrics"] |= {
                "time (ns)": total_ns,
                "count": count,
                "device_id": "0",
                "device_type": _DEVICE_TYPE,
            }
    write_text(f"{session.name}.hatchet", json.dumps([root, {_DEVICE_TYPE: {"0": _device()}}]))


_DEVICE_TYPE = _NAME.upper()


def _device() -> dict[str, Any]:
    properties = triton_driver.active.utils.get_device_properties(DEVICE_KEY)
    return {
        "arch": _NAME,
        "bus_width": properties["mem_bus_width"],
        "clock_rate": properties["sm_clock_rate"],
        "memory_clock_rate": properties["mem_clock_rate"],
        "num_sms": properties["multiprocessor_count"],
    }


def _node(name: str, metrics: dict[str, Any]) -> dict[str, Any]:
    frame = {"name": name, "type": "function"}
    return {"frame": frame, "metrics": metrics, "children": []}


def _at(root: dict[str, Any], path: Path) -> dict[str, Any]:
    node = root
    for name in path:
        children = node["children"]
        alike = [child for child in children if child["frame"]["name"] == name]
        node = alike[0] if alike else _node(name, {})
        if not alike:
            children.append(node)
    return node
