"""Options and fixtures that every test directory shares."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from kernbench.runtime_api import RuntimeContext
from tests.checking import CHECKED

# The machines are shared: an example's time says nothing. CI repeats the same examples.
settings.register_profile("kernbench", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kernbench")

# Triton's cache knows a kernel by its text, not by its file: what another checkout compiled would
# name that checkout's files.
os.environ.setdefault(
    "TRITON_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "triton")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--adr", metavar="NNNN", help="run only the tests that hold decisions of ADR NNNN"
    )

    parser.addoption("--check", action="store_true", help="run every kernel under the sanitizer")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "unchecked(reason): left out with --check")
    if config.getoption("--check"):
        CHECKED.set(True)
        defaults = RuntimeContext.__init__.__kwdefaults__
        assert defaults is not None
        defaults["check"] = True
        config.addinivalue_line("filterwarnings", "ignore::kernbench.errors.NonFiniteWarning")


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("unchecked")
    if mark is not None and item.config.getoption("--check"):
        pytest.skip(f"unchecked: {mark.args[0]}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave the bridge's own modules out where PyTorch, an extra, is not installed."""
    is_bridge = "kernbench/torch_bridge/" in collection_path.as_posix()
    return True if is_bridge and find_spec("torch") is None else None


def marked_decisions(item: pytest.Item) -> list[str]:
    """Return the decisions, such as 0027-D0.5, that a test is marked with."""
    return [decision for mark in item.iter_markers("adr") for decision in mark.args]


SLOW_FILES = (
    "cli/test_check.py",
    "collectives/test_algorithms.py",
    "commands/test_separable.py",
    "hardware/test_topology.py",
    "integration/test_bad_launch.py",
    "kernel_ir/test_integers.py",
    "sim_engine/test_kernel_schedule.py",
    "sim_engine/test_network.py",
    "sim_engine/test_selection.py",
    "triton_backend/test_activation.py",
    "validation/test_score.py",
)
"""Wholes that take seconds in many small parts; ``make test-fast`` leaves them out."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(SLOW_FILES):
            item.add_marker("slow")
    number = config.getoption("--adr")
    if number is None:
        return
    number = str(number).zfill(4)
    kept = [
        item
        for item in items
        if any(decision.split("-")[0] == number for decision in marked_decisions(item))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
