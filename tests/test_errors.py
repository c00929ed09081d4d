from __future__ import annotations

import inspect

import pytest

from kernbench import errors

USER_ERRORS = [
    item
    for _, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, errors.KernbenchError) and item is not errors.KernbenchError
]


@pytest.mark.parametrize("error", USER_ERRORS, ids=lambda e: e.__name__)
def test_a_users_mistake_is_also_the_fitting_built_in(error: type[Exception]) -> None:
    built_in = [base for base in error.__mro__ if base.__module__ == "builtins"]
    assert built_in[0] not in (Exception, BaseException, object)


@pytest.mark.parametrize("error", USER_ERRORS, ids=lambda e: e.__name__)
def test_an_error_survives_being_raised_again_from_its_args(error: type[Exception]) -> None:
    first = error("what was asked, what was found")
    again = type(first)(*first.args)
    assert str(again) == str(first)


def test_our_own_bugs_are_not_the_users_mistake() -> None:
    assert not issubclass(errors.InternalError, errors.KernbenchError)
