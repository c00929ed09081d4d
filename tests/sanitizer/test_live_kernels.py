"""Kernels that decide by data have the same checks; what orders their programs are atomics."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench
from kernbench import errors
from kernbench.sanitizer.facts.launch import Places
from kernbench.sanitizer.ordering.ordered_map import AccessKind, OrderedMap
from kernbench.sanitizer.ordering.programs import ProgramOrder
from kernbench.sanitizer.ordering.segments import Segments
from tests.sanitizer import buggy_live_kernels as kernels


@pytest.fixture
def torch() -> Iterator[Any]:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=True) as run:
        yield run


def line_of(kernel: Any, text: str) -> str:
    lines, start = inspect.getsourcelines(kernel.fn)
    where = start + next(i for i, line in enumerate(lines) if text in line)
    return f"buggy_live_kernels.py:{where}"


def twins(run: Callable[[bool], Any], error: type[Exception], *words: str) -> None:
    """Run without the bug, then with it, and look for ``words`` in what the error says."""
    run(False)
    with pytest.raises(error) as failure:
        run(True)
    for word in words:
        assert word in str(failure.value), failure.value


@pytest.mark.adr("0021-D6")
def test_what_a_lock_protects_is_ordered_and_what_it_does_not_is_a_race(torch: Any) -> None:
    def run(bug: bool) -> None:
        x, lock = torch.zeros(1, name="x"), torch.zeros(1, dtype="i32")
        kernels.locked_count[(6,)](x, lock, BUG=bug)
        assert x.item() == 6

    twins(
        run,
        errors.DataRaceError,
        line_of(kernels.locked_count, "x = tl.load(x_ptr)"),
        line_of(kernels.locked_count, "tl.store(x_ptr"),
        "x (1,) float32+0 (element 0)",
        "nothing orders the two",
    )


@pytest.mark.adr("0021-D6")
def test_the_last_to_arrive_may_read_if_its_counter_orders(torch: Any) -> None:
    def run(bug: bool) -> None:
        x, parts = torch.ones(64), torch.empty(4, name="parts")
        out, count = torch.zeros(1), torch.zeros(1, dtype="i32")
        order = "relaxed" if bug else "acq_rel"
        kernels.last_sums[(4,)](x, parts, out, count, ORDER=order, BLOCK=16)
        assert out.item() == 64

    twins(
        run,
        errors.DataRaceError,
        line_of(kernels.last_sums, "total += tl.load"),
        line_of(kernels.last_sums, "tl.store(parts_ptr"),
    )


@pytest.mark.adr("0021-D6")
def test_a_volatile_load_takes_up_what_was_released_before_the_signal(torch: Any) -> None:
    def run(bug: bool) -> None:
        flag, x = torch.zeros(1, dtype="i32"), torch.zeros(2, name="x", dtype="i32")
        kernels.hand_on[(2,)](flag, x, BUG=bug)
        assert x.tolist() == [5, 5]

    twins(run, errors.DataRaceError, line_of(kernels.hand_on, "tl.store(x_ptr, 5)"))


@pytest.mark.adr("0021-D6")
def test_a_kernel_that_decides_by_data_must_not_read_what_nobody_wrote(torch: Any) -> None:
    starts = torch.from_numpy(np.array([0, 5, 12], np.int32))

    def run(bug: bool) -> None:
        x, out = torch.empty(16, name="x"), torch.zeros(2)
        x[: 11 if bug else 12].fill_(1)
        kernels.ragged_sums[(2,)](starts, x, out, MASKED=2, BLOCK=4)
        assert out.tolist() == [5, 7]

    twins(
        run,
        errors.UninitializedReadError,
        "kernel ragged_sums, rank 0, program (1, 0, 0)",
        "x (16,) float32+44 (element 11)",
        line_of(kernels.ragged_sums, "other=0.0"),
    )


@pytest.mark.adr("0021-D6")
def test_what_such_a_kernel_writes_counts_as_written_and_nothing_else(torch: Any) -> None:
    starts = torch.from_numpy(np.array([0, 1, 2], np.int32))

    def run(bug: bool) -> None:
        out, again = torch.empty(3, name="out"), torch.zeros(1)
        kernels.ragged_sums[(2,)](starts, torch.ones(4), out, MASKED=2, BLOCK=4)
        ends = torch.from_numpy(np.array([0, 3 if bug else 2], np.int32))
        kernels.ragged_sums[(1,)](ends, out, again, MASKED=2, BLOCK=4)
        assert again.item() == 2

    twins(run, errors.UninitializedReadError, "out (3,) float32+8 (element 2)")


@pytest.mark.adr("0021-D6")
def test_a_masked_off_lane_of_such_a_kernel_must_not_reach_memory(torch: Any) -> None:
    starts = torch.from_numpy(np.array([0, 5, 12], np.int32))

    def run(bug: bool) -> None:
        out = torch.zeros(2)
        kernels.ragged_sums[(2,)](starts, torch.ones(16), out, MASKED=1 if bug else 2, BLOCK=4)
        out.numpy()

    load = line_of(kernels.ragged_sums, "mask=lane < last)")
    twins(run, errors.UndefinedValueError, f"tt.load at {load}", "tt.reduce at")


@pytest.mark.adr("0021-D6")
def test_32_bit_addresses_of_such_a_kernel_must_not_overflow(torch: Any) -> None:
    one = torch.from_numpy(np.ones(1, np.int32))
    rows = torch.from_numpy(np.arange(4, dtype=np.int32) << 16)

    def run_tile(bug: bool) -> None:
        out = torch.zeros(4)
        kernels.far_rows[(1,)](one, rows, torch.zeros(8), out, 1 << 16, BUG=bug, BLOCK=4)
        out.numpy()

    def run_scalar(bug: bool) -> None:
        out = torch.zeros(1)
        kernels.far_row[(1,)](rows[1:], torch.zeros(8), out, 1 << 16, BUG=bug)
        out.numpy()

    for run, kernel in ((run_tile, kernels.far_rows), (run_scalar, kernels.far_row)):
        where = line_of(kernel, "row * stride\n")
        twins(run, errors.AddressOverflowError, f"arith.muli at {where}", kernel.fn.__name__)


@pytest.mark.adr("0021-D6")
def test_nan_that_such_a_kernel_makes_names_program_and_line() -> None:
    def run(bug: bool) -> None:
        with kernbench.RuntimeContext(
            machine="ahbm", ranks=1, check=True, nan_is_error=True
        ) as torch:
            counts = torch.from_numpy(np.array([2, 0], np.int32))
            x, out = torch.from_numpy(np.array([1, 0], np.float32)), torch.zeros(2, name="out")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                kernels.ragged_ratio[(2,)](counts, x, out, BUG=bug)
                out.numpy()

    twins(
        run,
        errors.NonFiniteError,
        f"arith.divf at {line_of(kernels.ragged_ratio, 'x / bottom')}",
        "program (1, 0, 0)",
        "out (2,) float32+4 (element 1)",
    )


@pytest.mark.adr("0021-D6")
def test_such_a_launch_races_with_one_on_another_stream(torch: Any) -> None:
    starts = torch.from_numpy(np.array([0, 1, 2], np.int32))

    def run(bug: bool) -> None:
        x, out, again = torch.ones(4), torch.zeros(2, name="out"), torch.zeros(2)
        side = torch.ahbm.Stream()
        side.wait_stream(torch.ahbm.current_stream())
        kernels.ragged_sums[(2,)](starts, x, out, MASKED=2, BLOCK=4)
        if not bug:
            side.wait_stream(torch.ahbm.current_stream())
        with torch.ahbm.stream(side):
            kernels.ragged_sums[(1,)](starts, out, again, MASKED=2, BLOCK=4)
        torch.drain()

    twins(run, errors.DataRaceError, "stream sip0.", line_of(kernels.ragged_sums, "tl.store("))


@pytest.mark.adr("0021-D7")
@pytest.mark.parametrize("order", ["release", "relaxed"])
def test_a_signal_to_another_rank_orders_what_it_releases(order: str) -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        memory = torch.distributed.symmetric_memory
        x = memory.empty(64, dtype=torch.float32)
        x.zero_()
        shared = memory.rendezvous(x)
        flag = memory.empty(1, dtype=torch.int32)
        flag.zero_()
        flags = memory.rendezvous(flag)
        torch.distributed.barrier()
        if rank == 0:
            there = shared.get_buffer(1, (64,), torch.float32)
            signal = flags.get_buffer(1, (1,), torch.int32)
            kernels.put[(1,)](there, signal, ORDER=order, BLOCK=64)
        else:
            out = torch.zeros(64)
            kernels.take[(1,)](x, flag, out, BLOCK=64)
            np.testing.assert_array_equal(out.numpy(), np.full(64, 7))
            # Nobody but the kernel before it on this stream has heard of the signal.
            np.testing.assert_array_equal(x.numpy(), np.full(64, 7))

    def run() -> None:
        with kernbench.RuntimeContext(machine="ahbm", ranks=2, check=True) as torch:
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)

    if order == "release":
        run()
        return
    with pytest.raises(BaseExceptionGroup) as failure:
        run()
    (error, *_) = failure.value.exceptions
    assert isinstance(error, errors.DataRaceError)
    for word in ("kernel put, rank 0", line_of(kernels.put, "tl.store("), "kernel take, rank 1"):
        assert word in str(error), error


@pytest.mark.adr("0020-D7")
def test_a_check_of_such_a_kernel_never_changes_a_number() -> None:
    result = []
    for check in (False, True):
        with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=check) as torch:
            x, parts = torch.randn(256), torch.empty(8)
            out, count = torch.zeros(1), torch.zeros(1, dtype="i32")
            kernels.last_sums[(8,)](x, parts, out, count, ORDER="acq_rel", BLOCK=32)
            result.append((out.numpy().tobytes(), torch.run.simulation.now_ps))
    assert result[0] == result[1]


# -- the order of programs against vector clocks ----------------------------------------------

PROGRAMS, BYTES, FLAGS = 3, 3, 2
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["read", "write"]),
            st.integers(0, PROGRAMS - 1),
            st.integers(0, BYTES - 1),
        ),
        st.tuples(
            st.sampled_from(["acq_rel", "acquire", "release"]),
            st.integers(0, PROGRAMS - 1),
            st.integers(0, FLAGS - 1),
        ),
    ),
    max_size=24,
)


@pytest.mark.adr("0021-D6")
@given(EVENTS)
def test_programs_race_when_vector_clocks_say_so(events: list[tuple[str, int, int]]) -> None:
    """The oracle keeps a clock per program and flag, and every access ever made."""
    segments = Segments()
    order = ProgramOrder(segments, (PROGRAMS, 1, 1), None, "kernel k")
    data, flags = (OrderedMap(size, segments, Places()) for size in (BYTES, FLAGS))
    for name in ("read", "write"):
        data._places.number(name, name)
    clocks = [[int(p == q) for q in range(PROGRAMS)] for p in range(PROGRAMS)]
    told = [[0] * PROGRAMS for _ in range(FLAGS)]
    texts: list[tuple[str, int, int, int]] = []
    for what, program, place in events:
        where, who = np.array([place]), np.array([program])
        mine = clocks[program]
        if what in ("read", "write"):
            expected = any(
                byte == place and "write" in (what, other) and their != program and mine[their] < at
                for other, their, byte, at in texts
            )
            kind = AccessKind.WRITE if what == "write" else AccessKind.READ
            look = data.look(kind, where, order.of(who), int(what == "write"), 1)
            assert (look is not None) == expected
            if expected:
                return
            texts.append((what, program, place, mine[program]))
            continue
        if what != "release":
            clocks[program] = mine = [max(a, b) for a, b in zip(mine, told[place], strict=True)]
        releases = what != "acquire"
        order.synchronise(
            flags, where, who, 1, acquires=what != "release", released=np.array([releases])
        )
        if releases:
            told[place] = [max(a, b) for a, b in zip(mine, told[place], strict=True)]
            mine[program] += 1
