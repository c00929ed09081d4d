"""``--check`` says nothing of kernels and programs that are right, whatever they do with lanes."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench

_FILE = Path(__file__).parents[1] / "field" / "reliability" / "correct_kernels.py"


def _cases() -> dict[str, Callable[[Any], None]]:
    spec = importlib.util.spec_from_file_location("correct_kernels", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cases: dict[str, Callable[[Any], None]] = module.C
    return cases


CASES = _cases()


def test_there_are_as_many_as_the_release_of_triton_can_compile() -> None:
    assert len(CASES) in (29, 31)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_said_of_a_correct_kernel(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    ranks = getattr(CASES[name], "ranks", 1)
    with (
        warnings.catch_warnings(),
        kernbench.RuntimeContext(machine="ahbm", ranks=ranks, check=True) as torch,
    ):
        warnings.simplefilter("error")
        CASES[name](torch)
        torch.ahbm.synchronize()
    assert capfd.readouterr().err == ""
    assert not [line for ask in torch.run.remarks for line in ask()]
