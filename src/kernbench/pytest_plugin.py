"""A pytest plug-in: where kernbench is installed, kernels that tests run are checked (ADR-0021 D5).

It sets ``KERNBENCH_CHECK=1`` for the session unless the environment says otherwise, so programs
that a test starts are checked too. A test marked ``unchecked`` runs as without the plug-in:
one of speed, say, or of code that races on purpose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

VARIABLE = "KERNBENCH_CHECK"


def pytest_configure(config: pytest.Config) -> None:
    """Turn the sanitizer on for the session."""
    config.addinivalue_line(
        "markers", "unchecked(reason): kernels of the test run without kernbench's sanitizer"
    )
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = "1"
        config.add_cleanup(_forget)


def _forget() -> None:
    os.environ.pop(VARIABLE, None)


def pytest_report_header() -> str:
    """Say so at the top of the session's report."""
    value = os.environ.get(VARIABLE, "0")
    state = "off" if value in ("", "0") else "on (KERNBENCH_CHECK=0 turns it off)"
    return f"kernbench: sanitizer {state}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Leave a marked test alone, and the fixtures that it is the first to use."""
    if item.get_closest_marker("unchecked") is None:
        return (yield)
    with mock.patch.dict(os.environ, {VARIABLE: "0"}):
        return (yield)
