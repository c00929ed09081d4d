"""What a collective uses is not to be touched before it was waited for."""

from __future__ import annotations

import gc
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from kernbench.torch_bridge.placement.in_use import _touches  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

run = partial(simulated, "in_use.py", nprocs=2)


@pytest.mark.adr("0063-D5")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_touching_it_is_refused_with_both_lines(backend: str) -> None:
    run("touching_it_is_refused_with_both_lines", backend)
    with pytest.raises(SpawnException) as caught:
        run("touching_it_ends_the_run", backend)
    assert isinstance(caught.value.exceptions[0], UsageError)


@pytest.mark.adr("0063-D5")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_what_does_not_conflict_is_fine(backend: str) -> None:
    run("what_does_not_conflict_is_fine", backend)


@pytest.mark.adr("0063-D5")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_other_parts_of_a_buffer_are_the_programs(backend: str) -> None:
    run("other_parts_of_a_buffer_are_the_programs", backend)


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        ("what_nccl_runs_in_order_is_waited_for_with_the_last", "nccl"),
        ("another_group_runs_on_a_stream_of_its_own", "nccl"),
        ("gloo_runs_them_in_any_order", "gloo"),
    ],
)
def test_collectives_of_a_group_end_in_the_order_in_which_nccl_runs_them(
    case: str, backend: str
) -> None:
    run(case, backend)


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 4)])
def test_bytes_between_elements_are_told_from_theirs(shape: tuple[int, ...]) -> None:
    base = torch.zeros(shape)
    views = [base, base.transpose(0, -1), base[..., ::2], base[..., 1:3], base[1:], base[:1]]
    views += [base.expand(2, *shape)[:, ..., 1:]]
    for view in views:
        of_view = set(
            torch.arange(base.numel())
            .as_strided(view.shape, view.stride(), view.storage_offset())
            .flatten()
            .tolist()
        )
        for start in range(base.numel()):
            for stop in range(start + 1, base.numel() + 1):
                # A use of bytes that begin and end inside of elements.
                use: Any = SimpleNamespace(start=4 * start + 1, stop=4 * stop - 1)
                assert _touches(view, use) == (not of_view.isdisjoint(range(start, stop)))


def test_tensors_of_a_collective_that_has_ended_go_with_their_last_reference() -> None:
    try:
        run("tensors_of_a_collective_that_has_ended_go_with_their_last_reference", "nccl")
    finally:
        gc.enable()
