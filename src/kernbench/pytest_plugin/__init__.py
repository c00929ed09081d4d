"""A pytest plug-in: where kernbench is installed, kernels that tests run are checked (ADR-0021 D5).

It sets ``KERNBENCH_CHECK=1`` for the session unless the environment says otherwise, so programs
that a test starts are checked too. A test marked ``unchecked`` runs as without the plug-in:
one of speed, say, or of code that races on purpose. One marked ``kernbench_allow("masked-lanes")``
lets such mistakes pass (ADR-0108).

Tests that run programs and hold their modeled times have the fixtures ``kernbench_run`` and
``assert_time_within``; ``--kernbench-update`` keeps the times that later runs are compared with.
Those that judge kernels have ``kernbench_judge``.

.. autofunction:: kernbench.pytest_plugin.fixtures.kernbench_run
.. autofunction:: kernbench.pytest_plugin.fixtures.assert_time_within
.. autofunction:: kernbench.pytest_plugin.fixtures.kernbench_judge
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from kernbench.checks import as_allowed
from kernbench.errors import UsageError
from kernbench.pytest_plugin.fixtures import UPDATE
from kernbench.pytest_plugin.fixtures import assert_time_within as assert_time_within
from kernbench.pytest_plugin.fixtures import kernbench_judge as kernbench_judge
from kernbench.pytest_plugin.fixtures import kernbench_run as kernbench_run

VARIABLE = "KERNBENCH_CHECK"
ALLOW_VARIABLE = "KERNBENCH_ALLOW"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that keeps times."""
    parser.getgroup("kernbench").addoption(
        UPDATE,
        action="store_true",
        help="keep the modeled times that assert_time_within compares with",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Turn the sanitizer on for the session."""
    config.addinivalue_line(
        "markers", "unchecked(reason): kernels of the test run without kernbench's sanitizer"
    )
    config.addinivalue_line(
        "markers",
        "kernbench_allow(*mistakes): kernels of the test may make these (masked-lanes, "
        "out-of-bounds-reads)",
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that allow what there is not, before any test runs."""
    for item in items:
        for mark in item.iter_markers("kernbench_allow"):
            try:
                as_allowed(mark.args, f"kernbench_allow of {item.nodeid}")
            except UsageError as error:
                raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Leave a marked test alone, and the fixtures that it is the first to use."""
    variables = {}
    if item.get_closest_marker("unchecked") is not None:
        variables[VARIABLE] = "0"
    names = {name for mark in item.iter_markers("kernbench_allow") for name in mark.args}
    if names:
        variables[ALLOW_VARIABLE] = ",".join(sorted(names))
    with mock.patch.dict(os.environ, variables):
        return (yield)
