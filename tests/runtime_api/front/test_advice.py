"""Errors of Python, numpy and PyTorch leave a run with what to do about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import KernbenchError
from kernbench.runtime_api import RuntimeContext
from kernbench.runtime_api.front.multiprocessing import SpawnException


def notes_of(work: Any, data: bool = True, ranks: int = 1) -> str:
    """Return what is said about the error that ``work(torch)`` ends with."""
    with pytest.raises(Exception) as raised, RuntimeContext(data=data, ranks=ranks) as torch:  # noqa: PT012
        if ranks == 1:
            work(torch)
        else:
            torch.multiprocessing.spawn(lambda rank: work(torch), nprocs=ranks)
    error: BaseException = raised.value
    if isinstance(error, SpawnException):
        error = error.errors[0]
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda torch: torch.fft, "kernbench run FILE"),
        (lambda torch: torch.nn, "kernbench run FILE"),
        (lambda torch: torch.ones(2).backward(), "kernbench run FILE"),
        (lambda torch: torch.ones(2).tolst(), "did you mean tolist?"),
        (lambda torch: torch.distributed.all_reduc, "did you mean all_reduce?"),
        (lambda torch: torch.distributed.all_gather_object, "kernbench run FILE"),
        (lambda torch: torch.distributed.ReduceOp.BAND, "kernbench run FILE"),
        (lambda torch: torch.multiprocessing.Queue(), "kernbench run FILE"),
        (lambda torch: torch.multiprocessing.spown, "did you mean spawn?"),
        (lambda torch: torch.ahbm.memory_stats, "kernbench run FILE"),
        (lambda torch: torch.testing.assert_clse, "did you mean assert_close?"),
        (lambda torch: torch.float32.is_signed, "kernbench run FILE"),
        (lambda torch: ops.softmx, "did you mean softmax?"),  # type: ignore[attr-defined]
    ],
)
def test_a_name_that_is_lacking_is_told_with_what_to_do(work: Any, expected: str) -> None:
    said = notes_of(work)
    assert expected in said
    assert "can_read" not in said
    assert set(said.split("\n")) <= set(notes_of(work, ranks=2).split("\n"))


def test_a_name_of_the_programs_own_is_left_alone() -> None:
    assert notes_of(lambda torch: [].appnd) == "'list' object has no attribute 'appnd'"  # type: ignore[attr-defined]


def test_whether_a_run_has_a_name_can_be_asked() -> None:
    with RuntimeContext() as torch:
        assert not hasattr(torch, "nn")
        assert not hasattr(torch.ones(1), "grad_fn")
        with pytest.raises(KernbenchError):
            torch.nn  # type: ignore[attr-defined]  # noqa: B018


def _numpys(torch: Any) -> None:
    np.zeros(1 << 46)


def _pythons(torch: Any) -> None:
    raise MemoryError


def _pytorchs(torch: Any) -> None:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")


@pytest.mark.parametrize("work", [_numpys, _pythons, _pytorchs])
def test_a_host_without_memory_is_told_of_runs_without_data(work: Any) -> None:
    assert "--no-data" in notes_of(work)
    assert "--no-data" in notes_of(work, ranks=2)
    without = notes_of(work, data=False)
    assert "the memory of this machine is exhausted" in without
    assert "--no-data" not in without


def test_memory_of_a_device_is_another_matter() -> None:
    assert "this machine" not in notes_of(lambda torch: torch.empty(1 << 60))
