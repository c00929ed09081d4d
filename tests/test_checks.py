"""The setting of what a run checks and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

import kernbench
from kernbench.checks import Allowed, Checks, remedy
from kernbench.errors import UsageError

BOTH = {Allowed.MASKED_LANES, Allowed.OUT_OF_BOUNDS_READS}


@pytest.mark.adr("0108-D1")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", frozenset()),
        ((), frozenset()),
        ("masked-lanes", {Allowed.MASKED_LANES}),
        (" masked-lanes, out-of-bounds-reads,", BOTH),
        (["masked-lanes", "out-of-bounds-reads"], BOTH),
        ({Allowed.OUT_OF_BOUNDS_READS}, {Allowed.OUT_OF_BOUNDS_READS}),
    ],
)
def test_names_are_taken_one_by_one_or_with_commas(given: Any, expected: Any) -> None:
    assert Checks.of(False, given).allowed == expected


@pytest.mark.adr("0108-D1")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("masked", "there is no 'masked' to allow; did you mean masked-lanes"),
        (["bounds"], "there is no 'bounds' to allow"),
        ([None], "there is no None to allow"),
        (True, "allow must be names"),
        (7, "masked-lanes, out-of-bounds-reads"),
    ],
)
def test_other_names_are_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kernbench.RuntimeContext(allow=given)


def test_the_variable_allows_where_nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_ALLOW", "out-of-bounds-reads,masked-lanes")
    assert Checks.of().allowed == BOTH
    assert Checks.of(allow=()).allowed == frozenset()
    monkeypatch.setenv("KERNBENCH_ALLOW", "nan")
    with pytest.raises(UsageError, match="KERNBENCH_ALLOW: there is no 'nan' to allow; known: mas"):
        kernbench.RuntimeContext()


def test_what_nan_is_has_a_parameter_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_CHECK", "nan")
    assert Checks.of() == Checks(enabled=True, nan_is_error=True)
    assert Checks.of(nan_is_error=False) == Checks(enabled=True)
    assert Checks.of(True) == Checks(enabled=True)
    assert Checks.of(True, nan_is_error=True) == Checks(enabled=True, nan_is_error=True)
    for wrong in ({"check": False, "nan_is_error": True}, {"check": True, "nan_is_error": "yes"}):
        with pytest.raises(UsageError, match="nan_is_error"):
            kernbench.RuntimeContext(**wrong)
    value: Any = "nan"
    with pytest.raises(UsageError, match="check=True, nan_is_error=True"):
        kernbench.RuntimeContext(check=value)


@pytest.mark.parametrize("check", [1, 0, "Nan", "all", [], object()])
def test_other_values_of_check_are_refused(check: Any) -> None:
    with pytest.raises(UsageError, match="check must be True, False or None"):
        kernbench.RuntimeContext(check=check)


@pytest.mark.adr("0108-D1")
def test_every_remedy_names_an_option_that_is_taken() -> None:
    for allowed in Allowed:
        option = remedy(allowed).partition("(--allow ")[2].rstrip(")")
        assert Checks.of(False, option).allowed == {allowed}
