"""A pytest plugin that runs somebody else's Triton tests on kernbench.

Every test gets a run of its own, with CPU tensors of PyTorch as arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import kernbench
from kernbench.hardware import load_machine

_OPEN: pytest.StashKey[ExitStack] = pytest.StashKey()
_MACHINE = load_machine("ahbm", 1)


def pytest_configure(config: pytest.Config) -> None:
    # Some files ask Triton for its target while they are imported.
    stack = config.stash[_OPEN] = ExitStack()
    stack.enter_context(kernbench.RuntimeContext(_MACHINE, ranks=1))


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_OPEN].close()


@pytest.fixture(autouse=True)
def _kernbench_run() -> Iterator[Any]:
    with kernbench.RuntimeContext(_MACHINE, ranks=1) as run:
        yield run
