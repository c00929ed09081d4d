"""Options and fixtures that every test directory shares."""

from __future__ import annotations

import compileall
import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest import unraisableexception
from hypothesis import settings

from tests.tiers import MOST, MOST_DAILY, PROFILE

# Triton's cache knows a kernel by its text, not by its file: what another checkout compiled would
# name that checkout's files.
os.environ.setdefault(
    "TRITON_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "triton")
)

# What a script starts in the background ignores Ctrl-C, and so would the programs that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


collect_ignore = ["programs"]
"""They are run by tests, and are none."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--adr", metavar="NNNN", help="run only the tests that hold decisions of ADR NNNN"
    )
    parser.addoption(
        "--campaigns", action="store_true", help="run what is marked as a campaign, too"
    )
    parser.addoption("--backwards", action="store_true", help="run the last test first")


def marked_decisions(item: pytest.Item) -> list[str]:
    """Return the decisions, such as 0027-D0.5, that a test is marked with."""
    return [decision for mark in item.iter_markers("adr") for decision in mark.args]


SLOW_FILES = (
    "cli/test_check.py",
    "collectives/test_algorithms.py",
    "commands/test_separable.py",
    "hardware/test_topology.py",
    "integration/test_bad_launch.py",
    "kernel_ir/evaluation/test_integers.py",
    "kernel_time/launch/test_schedule.py",
    "links/test_network.py",
    "links/test_selection.py",
    "triton_backend/test_activation.py",
    "validation/scores/test_score.py",
)
"""Wholes that take seconds in many small parts; ``make test-fast`` leaves them out."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples of properties, and compile kernbench once for the processes of tests.

    Every run tries the same examples, so that a newcomer's says what CI's says; with
    ``--hypothesis-seed``, as ``make fuzz-properties`` gives it, they are those of the seed
    (ADR-0061). Machines are shared: an example's time says nothing. Campaigns and runs with a
    seed try more of them than others (:mod:`tests.tiers`).

    Where Python is told to write no bytecode, each of the hundreds of processes that tests start
    would compile all that it imports, which takes longer than importing it. Modules of tests, which
    they may change, are compiled as before.
    """
    has_seed = config.getoption("--hypothesis-seed", default=None) is not None
    settings.register_profile(
        PROFILE,
        deadline=None,
        derandomize=not has_seed,
        max_examples=MOST
        if has_seed or config.getoption("--campaigns", default=False)
        else MOST_DAILY,
    )
    settings.load_profile(PROFILE)
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "src" / "kernbench", quiet=2)
    # At its end pytest looks for errors of what nothing refers to any more: once is enough, five
    # times among what thousands of tests have left takes a quarter of a minute.
    key = getattr(unraisableexception, "gc_collect_iterations_key", None)
    if key is not None:
        config.stash[key] = 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let pytest keep the tests that it has compiled: each worker compiles them all otherwise.

    What tests write and import is compiled as it is otherwise. All that is made here stays: the
    garbage collector would look through it again and again.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        sys.dont_write_bytecode = before


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what all tests use: that is a tenth of their time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let it pass over what the tests of a file have left, too: it grows to gigabytes."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Let it go at the end, or C++ reports it as leaked."""
    gc.unfreeze()


@pytest.fixture
def collects_own() -> None:
    """Let ``gc.collect()`` look only at what the test makes.

    Among all that hundreds of tests have left in the process, it takes seconds.
    """
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--backwards"):
        items.reverse()
    for item in items:
        if item.path.as_posix().endswith(SLOW_FILES):
            item.add_marker("slow")
    number = config.getoption("--adr")
    if number is not None:
        kept = [item for item in items if holds_record(item, str(number).zfill(4))]
    elif not config.getoption("--campaigns"):
        kept = [item for item in items if item.get_closest_marker("campaign") is None]
    else:
        return
    kept_ids = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept_ids])
    items[:] = kept


def holds_record(item: pytest.Item, number: str) -> bool:
    """Return whether a test holds a decision of an ADR."""
    return any(decision.split("-")[0] == number for decision in marked_decisions(item))
