"""Loops that programs go around differently often: one evaluation against one for each path."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    DmaRead,
    KernelTrace,
    Loop,
    Separable,
    by_path,
    path_numbers,
    paths,
    walk,
    without_met_masks,
)
from kernbench.dtypes import DType
from kernbench.hardware import load_machine
from kernbench.kernel_ir import evaluate, footprints, out_of_bounds
from kernbench.kernel_ir.evaluation import shared_loops
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.shared_loops import same_commands
from kernbench.kernel_time.conditions import Conditions
from kernbench.kernel_time.costs.traffic import varies_by_program
from kernbench.kernel_time.launch.waves import build_waves
from kernbench.triton_backend import KernelBinary, activate
from tests.replay.executing import ExecutingLauncher
from tests.tiers import examples

QUICK = examples(20)
BLOCK = 16
RNG = np.random.default_rng(11)


@triton.jit(do_not_specialize=("n", "start", "rise", "high", "slope", "step"))
def ragged(
    x_ptr, out_ptr, end_ptr, n, start, rise, high, slope, step,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Bounds of the program, a mask, a pointer that moves, and integers that go on after it."""
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    pointer = x_ptr + pid * n + lane
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    count = pid
    for at in range(start + pid * rise, high + pid * slope, step):
        total += tl.load(pointer, mask=at + lane < n, other=0.0)
        pointer += 3
        count += 2
    tl.store(out_ptr + pid * BLOCK + lane, total + tl.load(pointer))
    tl.store(end_ptr + pid, count)


@triton.jit(do_not_specialize=("columns", "rows"))
def nested(x_ptr, out_ptr, columns, rows, BLOCK: tl.constexpr):
    """A loop of the program inside of another one, and one that starts where they end."""
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(2 * pid + 1):
        for column in range(0, (pid // 2 + 1) * BLOCK, BLOCK):
            total += tl.load(x_ptr + row * columns + column + lane)
    for row in range(2 * pid + 1, rows):
        total += 100 * tl.load(x_ptr + row * columns + lane)
    tl.store(out_ptr + pid * BLOCK + lane, total)


@triton.jit(do_not_specialize=("n",))
def prefixes(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Loads whose addresses do not depend on the program, but for where they end."""
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(0, (pid + 1) * BLOCK, BLOCK):
        total += tl.load(x_ptr + at + lane, mask=at + lane < n, other=0.0)
    tl.store(out_ptr + pid * BLOCK + lane, total)


@triton.jit(do_not_specialize=("n",))
def suffixes(x_ptr, out_ptr, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """A loop from the program's own tile on, whose end a mask may say once more."""
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(pid * BLOCK, n, BLOCK):
        mask = at + lane < n
        if MASKED:
            total += tl.load(x_ptr + at + lane, mask=mask, other=0.0)
        else:
            total += tl.load(x_ptr + at + lane)
    tl.store(out_ptr + pid * BLOCK + lane, total)


@triton.jit(do_not_specialize=("n",))
def folded(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """What is held after the loop has no closed form."""
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    place = pid
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(pid + 1):
        total += tl.load(x_ptr + place + lane)
        place = (place * 5 + 1) % n
    tl.store(out_ptr + pid * BLOCK + lane, total + place)


@triton.jit(do_not_specialize=("n",))
def both_sides(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A loop that the first program skips, and one that the last program skips."""
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(pid):
        total += tl.load(x_ptr + at * BLOCK + lane)
    for at in range(pid + 1, n):
        total += 100 * tl.load(x_ptr + at * BLOCK + lane)
    tl.store(out_ptr + pid * BLOCK + lane, total)


class Keeping(ExecutingLauncher):
    """Keeps what it was asked to launch, to evaluate it again."""

    def launch(self, binary: KernelBinary, grid: tuple[int, int, int], args: Any) -> None:
        super().launch(binary, grid, args)
        ints = {index: arg for index, arg in enumerate(args) if isinstance(arg, int)}
        self.asked = binary.module, grid, ints

    def alone(self) -> KernelTrace:
        """Return the last launch with every path evaluated by itself."""
        module, grid, ints = self.asked
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_loops, "_FEWEST_PATHS", 1 << 30)
            return evaluate(module, grid, ints, num_warps=4, num_stages=3)


def check_against_alone(device: Keeping) -> None:
    """Compare each path that was cut with the one that was evaluated alone."""
    alone, cut = device.alone(), by_path(device.last)
    assert not any(group.trips for group in alone.groups)
    assert len(cut.groups) == len(alone.groups)
    for mine, other in zip(cut.groups, alone.groups, strict=True):
        assert mine.program_ids.tolist() == other.program_ids.tolist()
        mine_body, other_body = _numbered(mine.body), _numbered(other.body)
        assert same_commands(mine_body, other_body)
    assert footprints(device.last) == footprints(alone)


def _numbered(body: Any) -> Any:
    """Return a body whose loops are named by their order."""
    names = {walk_loop.loop_id: at for at, walk_loop in enumerate(walk_loops(body))}
    return _renamed(body, names)


def walk_loops(body: Any) -> list[Loop]:
    return [node for node in walk(body) if isinstance(node, Loop)]


def _renamed(value: Any, names: dict[int, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_renamed(item, names) for item in value)
    if hasattr(value, "terms"):
        terms = {
            tuple(1 + names.get(dim - 1, dim - 1) for dim in dims): array
            for dims, array in value.terms.items()
        }
        if isinstance(value, Separable):
            return Separable(value.shape, value.const, terms)
        return type(value)(value.shape, terms)
    if not dataclasses.is_dataclass(value) or isinstance(value, DType):
        return value
    changes = {
        field.name: _renamed(getattr(value, field.name), names)
        for field in dataclasses.fields(value)
    }
    if isinstance(value, Loop):
        changes["loop_id"] = names[value.loop_id]
    kind: Any = type(value)
    return kind(**changes)


@QUICK
@given(
    programs=st.integers(4, 9),
    n=st.integers(1, 70),
    start=st.integers(-5, 9),
    rise=st.integers(-4, 6),
    high=st.integers(0, 60),
    slope=st.integers(-8, 16),
    step=st.integers(1, 7),
)
def test_a_shared_loop_does_what_each_path_does(
    programs: int, n: int, start: int, rise: int, high: int, slope: int, step: int
) -> None:
    device = Keeping()
    x = RNG.standard_normal(2048).astype(np.float32)
    out = device.tensor(np.zeros((programs, BLOCK), dtype=np.float32))
    end = device.tensor(np.zeros(programs, dtype=np.int32))
    with activate(device):
        ragged[(programs,)](
            device.tensor(x), out, end, n, start, rise, high, slope, step, BLOCK=BLOCK
        )
    for pid in range(programs):
        total = np.zeros(BLOCK, dtype=np.float32)
        place = pid * n
        turns = range(start + pid * rise, high + pid * slope, step)
        for at in turns:
            total += np.where(at + np.arange(BLOCK) < n, x[place : place + BLOCK], 0)
            place += 3
        np.testing.assert_array_equal(out.numpy()[pid], total + x[place : place + BLOCK])
        assert end.numpy()[pid] == pid + 2 * len(turns)
    check_against_alone(device)


@pytest.mark.parametrize("programs", [4, 7, 12])
def test_loops_in_and_after_shared_loops_are_shared(programs: int) -> None:
    device = Keeping()
    rows, columns = 2 * programs, 8 * BLOCK
    x = RNG.integers(-9, 9, (rows, columns)).astype(np.float32)
    out = device.tensor(np.zeros((programs, BLOCK), dtype=np.float32))
    with activate(device):
        nested[(programs,)](device.tensor(x), out, columns, rows, BLOCK=BLOCK)
    for pid in range(programs):
        first, inner = x[: 2 * pid + 1], (pid // 2 + 1) * BLOCK
        expected = first[:, :inner].reshape(-1, BLOCK).sum(0)
        expected = expected + 100 * x[2 * pid + 1 :, :BLOCK].sum(0)
        np.testing.assert_array_equal(out.numpy()[pid], expected)
    (group,) = device.last.groups
    assert len(group.trips) == 3
    check_against_alone(device)


@pytest.mark.parametrize("n", [1, 50, 6 * BLOCK, 200])
def test_the_bytes_that_the_longest_program_touches_are_found(n: int) -> None:
    device = Keeping()
    x = RNG.integers(-9, 9, 6 * BLOCK).astype(np.float32)
    out = device.tensor(np.zeros((6, BLOCK), dtype=np.float32))
    with activate(device):
        prefixes[(6,)](device.tensor(x), out, n, BLOCK=BLOCK)
    (group,) = device.last.groups
    assert group.trips
    loaded, stored = footprints(device.last)
    assert (loaded.low, loaded.high) == (0, 4 * min(n, 6 * BLOCK))
    assert (stored.low, stored.high) == (0, 4 * 6 * BLOCK)
    result = out_of_bounds(device.last, 0, 0, loaded.high - 4)
    assert result is not None
    assert (result.byte_offset, result.program) == (
        loaded.high - 4,
        ((min(n, 96) - 1) // BLOCK, 0, 0),
    )
    check_against_alone(device)


@pytest.mark.parametrize("machine", ["ahbm", "a100-sxm-80g"])
def test_a_mask_that_says_a_loops_bound_again_takes_no_time(machine: str) -> None:
    times: list[int] = []
    for masked in (True, False):
        device = Keeping()
        x = device.tensor(np.ones(12 * BLOCK, dtype=np.float32))
        out = device.tensor(np.zeros((12, BLOCK), dtype=np.float32))
        with activate(device):
            suffixes[(12,)](x, out, 12 * BLOCK, MASKED=masked, BLOCK=BLOCK)
        (group,) = device.last.groups
        assert varies_by_program(group) == masked
        assert not varies_by_program(without_met_masks(group))
        sip = load_machine(machine, 1).sip
        times.append(build_waves(device.last, sip, Conditions()).makespan_ps)
    assert times[0] == times[1]


def test_a_mask_that_fails_within_a_loop_is_kept() -> None:
    device = Keeping()
    x = device.tensor(np.ones(12 * BLOCK, dtype=np.float32))
    out = device.tensor(np.zeros((12, BLOCK), dtype=np.float32))
    with activate(device):
        suffixes[(12,)](x, out, 12 * BLOCK - 3, MASKED=True, BLOCK=BLOCK)
    (group,) = device.last.groups
    assert varies_by_program(without_met_masks(group))


def test_a_loop_without_a_closed_form_is_evaluated_path_by_path() -> None:
    device = Keeping()
    x = RNG.integers(-9, 9, 200).astype(np.float32)
    out = device.tensor(np.zeros((6, BLOCK), dtype=np.float32))
    with activate(device):
        folded[(6,)](device.tensor(x), out, 101, BLOCK=BLOCK)
    for pid in range(6):
        place, total = pid, np.zeros(BLOCK)
        for _ in range(pid + 1):
            total += x[place : place + BLOCK]
            place = (place * 5 + 1) % 101
        np.testing.assert_array_equal(out.numpy()[pid], total + place)
    assert len(device.last.groups) == 6
    check_against_alone(device)


def test_who_skips_a_loop_is_a_group_of_its_own() -> None:
    device = Keeping()
    out = device.tensor(np.zeros((8, BLOCK), dtype=np.float32))
    end = device.tensor(np.zeros(8, dtype=np.int32))
    with activate(device):
        ragged[(8,)](
            device.tensor(np.zeros(2048, dtype=np.float32)), out, end, 70, 0, 0, 0, 2, 1,
            BLOCK=BLOCK,
        )  # fmt: skip
    assert [group.program_ids.tolist() for group in device.last.groups] == [[0], [*range(1, 8)]]
    assert [len(group.trips) for group in device.last.groups] == [0, 1]


def test_parts_that_skip_a_loop_are_not_tried_again_without_sharing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, programs = Keeping(), 9
    x = RNG.integers(-9, 9, (programs, BLOCK)).astype(np.float32)
    out = device.tensor(np.zeros((programs, BLOCK), dtype=np.float32))
    walks: list[int] = []
    walk_over = Evaluator.run

    def counted(run: Evaluator, ints: Any) -> Any:
        walks.append(len(run.program_ids))
        return walk_over(run, ints)

    monkeypatch.setattr(Evaluator, "run", counted)
    with activate(device):
        both_sides[(programs,)](device.tensor(x), out, programs, BLOCK=BLOCK)
    # All of them; few on trial; the first; the others; those but the last, and two of their paths
    # alone; the last.
    assert walks == [9, 8, 1, 8, 7, 1, 1, 1]
    monkeypatch.undo()
    for pid in range(programs):
        expected = x[:pid].sum(0) + 100 * x[pid + 1 :].sum(0)
        np.testing.assert_array_equal(out.numpy()[pid], expected)
    assert [len(group.trips) for group in device.last.groups] == [0, 2, 0]
    check_against_alone(device)


def test_paths_are_in_order_of_their_first_program() -> None:
    device = Keeping()
    out = device.tensor(np.zeros((8, BLOCK), dtype=np.float32))
    end = device.tensor(np.zeros(8, dtype=np.int32))
    with activate(device):
        ragged[(8,)](
            device.tensor(np.zeros(2048, dtype=np.float32)), out, end, 70, 0, 0, 20, -2, 4,
            BLOCK=BLOCK,
        )  # fmt: skip
    (group,) = device.last.groups
    ((loop_id, trips),) = group.trips
    assert trips.tolist() == [len(range(0, 20 - 2 * pid, 4)) for pid in range(8)]
    counts, path_of = path_numbers(group)
    assert counts[loop_id].tolist() == [5, 4, 3, 2]
    assert (counts[loop_id][path_of] == trips).all()
    assert [trips[path[0]] for path in paths(group)] == [5, 4, 3, 2]


def test_bodies_that_differ_in_a_number_a_line_or_a_tile_are_not_the_same() -> None:
    device = Keeping()
    out = device.tensor(np.zeros((4, BLOCK), dtype=np.float32))
    with activate(device):
        nested[(4,)](device.tensor(np.zeros((8, 128), dtype=np.float32)), out, 128, 8, BLOCK=BLOCK)
    body = by_path(device.last).groups[0].body
    assert same_commands(body, body)
    loads = [node for node in walk(body) if isinstance(node, DmaRead)]
    moved = dataclasses.replace(loads[0].source, offset=loads[0].source.offset + Separable((), 4))
    others = (
        dataclasses.replace(loads[0], source=moved),
        dataclasses.replace(loads[0], line=loads[-1].line),
        dataclasses.replace(loads[0], volatile=True),
    )
    assert not any(same_commands(loads[0], item) for item in others)
    assert not same_commands(
        (loads[0], loads[0]), (loads[0], dataclasses.replace(loads[0], dst=loads[-1].dst))
    )
