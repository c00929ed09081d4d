from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conformance.report import Outcome, build_report


@pytest.mark.adr("0041-D4")
def test_the_report_counts_files_and_groups_failures_by_reason() -> None:
    outcomes = {
        "test_core.py::test_a[1]": Outcome("passed", ""),
        "test_core.py::test_a[2]": Outcome("failed", "KeyError: 3"),
        "test_core.py::test_b": Outcome("failed", "KeyError: 17"),
        "test_tuple.py::test_c": Outcome("skipped", "needs a GPU"),
    }
    text = build_report(outcomes, "abc123", {"triton": "3.9.0"})
    assert "`abc123`" in text
    assert "triton 3.9.0" in text
    assert "| test_core.py | 3 | 1 | 2 | 0 |" in text
    assert "| test_tuple.py | 1 | 0 | 0 | 1 |" in text
    assert "- 2 x `KeyError: N`" in text
    assert "  - `test_core.py::test_a`: 1" in text


@pytest.mark.adr("0041-D2")
def test_the_plugin_names_no_test_and_skips_none() -> None:
    source = Path(__file__).with_name("kernbench_conformance.py").read_text()
    words = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not any(word.startswith("test_") for word in words)
    assert not {"skip", "xfail", "pytest_collection_modifyitems"} & {
        node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)
    }
    assert "pytest_collection_modifyitems" not in source
