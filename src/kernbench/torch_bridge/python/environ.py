"""``os.environ`` with one set of variables per simulated process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

_base: Any = type(os.environ)


class _ProcessEnviron(_base):
    """Replaces the class of ``os.environ``, whose object stays the same."""

    @property
    def _data(self) -> dict[Any, Any]:
        process = HERE.process
        return self.__dict__["_data"] if process is None else process.environ

    def __setitem__(self, key: str, value: str) -> None:
        # Without putenv: C code sees the environment of the real process.
        self._data[self.encodekey(key)] = self.encodevalue(value)

    def __delitem__(self, key: str) -> None:
        try:
            del self._data[self.encodekey(key)]
        except KeyError:
            raise KeyError(key) from None


def variables() -> dict[Any, Any]:
    """Return a copy of the caller's variables, encoded."""
    return dict(os.environ._data)  # type: ignore[attr-defined]


def encoded(values: Mapping[str, str]) -> dict[Any, Any]:
    """Return variables encoded as ``os.environ`` keeps them."""
    environ: Any = os.environ
    return {environ.encodekey(k): environ.encodevalue(v) for k, v in values.items()}


def install(patches: Patches) -> None:
    """Give every process its own environment variables."""
    environ: Any = os.environ
    before = environ.__class__
    environ.__class__ = _ProcessEnviron
    patches.on_close(setattr, environ, "__class__", before)
