"""What classes keep by themselves is read as it is kept, without asking it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from kernbench.torch_bridge.assigned.writes import read
from kernbench.torch_bridge.base.patches import MISSING


class MadeWhenAsked:
    """As a mock's proxies, which make a mock for whoever reads them."""

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        raise AssertionError("it was asked")


class OfProxies:
    __call__ = __repr__ = MadeWhenAsked()


def test_names_that_python_calls_are_read_without_a_descriptor() -> None:
    for name in ("__call__", "__repr__"):
        assert read(OfProxies, name) is vars(OfProxies)[name]
    assert read(OfProxies, "__hash__") is MISSING
    # What a class keeps beside its dictionary.
    assert read(OfProxies, "__name__") == "OfProxies"
    assert read(OfProxies, "__class__") is type
