from __future__ import annotations

import subprocess
import sys

import pytest

import kernbench


def test_the_package_lists_what_it_has_and_has_what_it_lists() -> None:
    names = dir(kernbench)
    assert {"DPPolicy", "Machine", "RuntimeContext", "load_machine", "ops", "tp"} <= set(names)
    for name in names:
        assert getattr(kernbench, name) is not None
    with pytest.raises(
        AttributeError, match=r"no attribute 'Runtime'; it has DPPolicy, .*ops, .*tp, why"
    ):
        _ = kernbench.Runtime


def test_the_package_shows_nothing_of_its_inside() -> None:
    code = """
import types
import kernbench, kernbench.api, kernbench.cli.app, kernbench.plans
shown = {name for name in dir(kernbench) if isinstance(getattr(kernbench, name), types.ModuleType)}
assert shown == {"analysis", "errors", "hardware", "op_log", "ops", "page", "saved", "tp"}, shown
assert callable(kernbench.run) and callable(kernbench.retime) and callable(kernbench.plan)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_packages_are_imported_when_they_are_asked_for() -> None:
    code = "import sys, kernbench; dir(kernbench); assert 'triton' not in sys.modules"
    code += "; kernbench.ops.add"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
