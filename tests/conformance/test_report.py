from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conformance.outcomes import is_in, reason_of
from tests.conformance.report import Outcome, build_report
from tests.conformance.suites import DISTRIBUTED, INDUCTOR, TRITON


@pytest.mark.adr("0041-D4")
def test_the_report_counts_files_and_groups_failures_by_reason() -> None:
    outcomes = {
        "test_core.py::test_a[1]": Outcome("passed", ""),
        "test_core.py::test_a[2]": Outcome("failed", "KeyError: 3"),
        "test_core.py::test_b": Outcome("failed", "KeyError: 17"),
        "test_tuple.py::test_c": Outcome("skipped", "needs a GPU"),
    }
    text = build_report(TRITON, outcomes, "here at commit `abc123`", {"triton": "3.9.0"}, 61.0)
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


def test_files_that_were_cut_off_say_what_has_not_run() -> None:
    outcomes = {
        "test_a.py::test_a": Outcome("passed", ""),
        "test_a.py::test_b": Outcome("not run", "the file's time was over"),
    }
    text = build_report(DISTRIBUTED, outcomes, "here at commit `abc123`", {}, 61.0)
    assert "| test_a.py | 2 | 1 | 0 | 0 | 1 |" in text
    assert "It took 2 minutes" in text
    assert "- 1 x `the file's time was over`" in text


def test_the_reason_of_ranks_is_that_of_the_first() -> None:
    text = (
        "RuntimeError: Process 0 exited with error code 10 and exception:\n"
        "Traceback (most recent call last):\n  File ...\nValueError: first\n\n"
        "The above exception was the direct cause of the following exception:\n"
        "  File ...\na.b.SomeError: second\n\nTo execute this test, ...\n"
        "Process 1 exited with error code 10 and exception:\nKeyError: of another"
    )
    assert reason_of(text) == "a.b.SomeError: second"
    assert reason_of("AssertionError: 1 != 2\nmore") == "AssertionError: 1 != 2"


@pytest.mark.adr("0041-D7")
def test_a_share_of_the_tests_is_said() -> None:
    outcomes = {f"test_a.py::test_{n}": Outcome("passed", "") for n in range(10)}
    assert "20% of the cases" in build_report(INDUCTOR, outcomes, "here", {}, 61.0, 0.2)
    assert "% of the cases" not in build_report(INDUCTOR, outcomes, "here", {}, 61.0)


def test_the_reason_of_a_traced_call_is_the_error_that_it_raised() -> None:
    text = (
        "TorchRuntimeError: RuntimeError when making fake tensor call\n"
        "  Explanation: Dynamo failed: call_method to(*(x,), **{}): got KeyError('3')\n"
        "  Hint: Your code may result in an error\n"
    )
    assert reason_of(text).endswith("fake tensor call: KeyError('3')")


@pytest.mark.adr("0041-D7")
def test_a_share_is_the_same_tests_in_any_folder() -> None:
    names = [f"test_a.py::test_{n}" for n in range(100)]
    assert [is_in(name, 0.5) for name in names] == [is_in(f"/tmp/x/{name}", 0.5) for name in names]
    assert all(is_in(name, 1) for name in names)
