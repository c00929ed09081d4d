"""Kernels that decide by data, on data: real Triton kernels against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    DmaWrite,
    Gemm,
    KernelTrace,
    Predicate,
    Separable,
    SourceLine,
    Splat,
)
from kernbench.dtypes import float32
from kernbench.errors import (
    BadPointerError,
    DeadlockError,
    NeedsDataError,
    OutOfBoundsError,
    UsageError,
)
from kernbench.interleaved import Executed, InterleavedLaunch, strand
from kernbench.interleaved.execution import exactly
from kernbench.kernel_ir import evaluate, written_params
from kernbench.replay import GroupPlan, PointerArg
from kernbench.triton_backend import KernelBinary, activate
from tests.interleaved import live_kernels as kernels
from tests.replay.executing import ExecutingLauncher, Tensor
from tests.tiers import examples

RNG = np.random.default_rng(11)


class LiveLauncher(ExecutingLauncher):
    """Runs what needs data, and insists that it does."""

    done: Executed
    plans: dict[Any, GroupPlan] | None = None

    def launch(
        self, binary: KernelBinary, grid: tuple[int, int, int], args: tuple[Any, ...]
    ) -> None:
        floats = [param.type.is_float for param in binary.module.kernel.params]
        ints = {i: a for i, a in enumerate(args) if isinstance(a, int) and not floats[i]}
        options: dict[str, Any] = {"num_warps": binary.num_warps, "num_stages": binary.num_stages}
        with pytest.raises(NeedsDataError):
            evaluate(binary.module, grid, ints, **options)
        params = [PointerArg(a.buffer) if isinstance(a, Tensor) else a for a in args]
        self.binary = binary
        self.done = InterleavedLaunch(
            binary.module, grid, ints, params, self.memory.find, plans=self.plans, **options
        ).execute()

    def zeros(self, *shape: int, dtype: Any = np.int32) -> Tensor:
        return self.tensor(np.zeros(shape, dtype))


@pytest.fixture
def device() -> Iterator[LiveLauncher]:
    launcher = LiveLauncher()
    with activate(launcher):
        yield launcher


def with_device(use: Callable[[LiveLauncher], None]) -> None:
    launcher = LiveLauncher()
    with activate(launcher):
        use(launcher)


def atomics(trace: KernelTrace) -> int:
    return sum(isinstance(command, Atomic) for command in trace.commands())


# -- loops and branches by data ---------------------------------------------------------------


def collatz_steps(value: int) -> int:
    steps = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


@pytest.mark.adr("0031-D1")
@examples(15)
@given(values=st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_a_loop_runs_as_long_as_each_program_needs(values: list[int]) -> None:
    def use(device: LiveLauncher) -> None:
        steps = device.zeros(len(values))
        kernels.collatz[(len(values),)](device.tensor(np.array(values, np.int32)), steps)
        assert steps.numpy().tolist() == [collatz_steps(value) for value in values]
        # Programs stay together as long as they decide alike.
        assert len(device.done.trace.groups) == len({collatz_steps(value) for value in values})

    with_device(use)


def test_equal_commands_of_a_later_launch_take_the_steps_of_earlier_ones(
    device: LiveLauncher,
) -> None:
    device.plans = {}

    def plans_after(*values: int) -> int:
        steps = device.zeros(len(values))
        kernels.collatz[(len(values),)](device.tensor(np.array(values, np.int32)), steps)
        assert steps.numpy().tolist() == [collatz_steps(value) for value in values]
        assert device.plans is not None
        return len(device.plans)

    first = plans_after(6, 7, 27)
    assert first > 0
    assert plans_after(6, 7, 27) == first
    # Others stay together for as long.
    assert plans_after(27, 3, 6) > first


def test_steps_are_only_of_commands_of_which_all_is_equal() -> None:
    line = SourceLine("kernel.py", 3)

    def key(value: Any, offset: int = 0, count: int = 4) -> Any:
        where = Access(1, Separable((count,), offset, {(PROGRAM,): np.arange(2)}), float32)
        stored = DmaWrite(where, Splat(value, (count,), float32), Predicate((count,)), line)
        return exactly((stored,))

    assert key(1.0) == key(1.0)
    others = [key(0.0), key(-0.0), key(1.0), key(1), key(True), key(1.0, 4), key(1.0, 0, 8)]
    assert len(set(others)) == len(others)


@examples(10)
@given(
    table=st.lists(st.integers(-50, 50), min_size=1, max_size=40),
    keys=st.lists(st.integers(-60, 60), min_size=1, max_size=20),
)
def test_bisection_loads_where_the_last_load_said(table: list[int], keys: list[int]) -> None:
    def use(device: LiveLauncher) -> None:
        ordered = np.sort(np.array(table, np.int32))
        result = device.zeros(len(keys))
        args = (device.tensor(ordered), device.tensor(np.array(keys, np.int32)), result)
        kernels.bisect[(len(keys),)](*args, len(table))
        np.testing.assert_array_equal(result.numpy(), np.searchsorted(ordered, keys))

    with_device(use)


def test_a_float_condition_is_a_decision_by_data(device: LiveLauncher) -> None:
    x = RNG.uniform(1, 100, 32).astype(np.float32)
    root = device.zeros(32, dtype=np.float32)
    kernels.newton[(32,)](device.tensor(x), root, 1e-3)
    np.testing.assert_allclose(root.numpy(), np.sqrt(x), rtol=1e-3)


@pytest.mark.adr("0031-D1")
def test_trip_counts_may_be_loaded(device: LiveLauncher) -> None:
    lengths = RNG.integers(0, 100, 40)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = RNG.integers(-9, 9, starts[-1]).astype(np.float32)
    sums = device.tensor(np.full(40, -1, np.float32))
    kernels.row_sums[(40,)](device.tensor(starts), device.tensor(values), sums, B=16)
    rows = [values[a:b].sum() for a, b in pairwise(starts)]
    np.testing.assert_array_equal(sums.numpy(), rows)
    # A loop that only has its trip count from data is one command.
    assert len(device.done.trace.groups) <= len({-(-length // 16) for length in lengths})


def test_programs_may_return_early(device: LiveLauncher) -> None:
    flags = RNG.integers(0, 2, 20).astype(np.int32)
    x = RNG.standard_normal((20, 8)).astype(np.float32)
    out = device.zeros(20, 8, dtype=np.float32)
    kernels.skip[(20,)](device.tensor(flags), device.tensor(x), out, B=8)
    np.testing.assert_array_equal(out.numpy(), np.where(flags[:, None] == 1, 2 * x, 0))


@pytest.mark.parametrize("leaving", [[], [1, 2, 4], range(6)], ids=["none", "some", "all"])
def test_several_early_returns_are_no_loop(device: LiveLauncher, leaving: Sequence[int]) -> None:
    """All of vLLM's programs leave by the second return where each row has a top-k."""
    rows, size, parts = 6, 100, 4
    logits = RNG.standard_normal((rows, size)).astype(np.float32)
    logits[:, ::7] = -np.inf
    bounds, tops = np.full(rows, 0.9, np.float32), np.full(rows, size, np.int32)
    tops[list(leaving)] = 5
    bounds[1:2] = 0.9 if len(leaving) == rows else 1
    stats = device.zeros(rows, parts, 4, dtype=np.float32)
    operands = [device.tensor(item) for item in (tops, bounds)]
    kernels.row_stats[(rows * parts,)](
        device.tensor(logits), stats, *operands, N=size, S=parts, B=16
    )
    expected = np.zeros((rows, parts, 4), np.float32)
    for row in np.flatnonzero((bounds < 1) & (tops == size)):
        for part, x in enumerate(np.split(logits[row], parts)):
            known = x[np.isfinite(x)]
            total = np.exp(known - known.max()).sum()
            expected[row, part] = known.max(), total, known.min(), len(known)
    np.testing.assert_allclose(stats.numpy(), expected, rtol=1e-6)


def test_a_called_function_may_decide_by_data(device: LiveLauncher) -> None:
    x = np.array([0, 7, 10, 99, 12345], np.int32)
    out = device.zeros(5)
    kernels.nested_calls[(5,)](device.tensor(x), out, 5)
    assert out.numpy().tolist() == [0, 1, 2, 2, 5]


def test_a_descriptor_may_go_where_a_table_says(device: LiveLauncher) -> None:
    cache = RNG.integers(-9, 9, (6, 8, 16)).astype(np.float32)
    table = np.array([[0, 5, 2], [3, -1, 3], [-1, -1, -1], [5, 4, -1]], np.int32)
    out = device.zeros(4, 8, 16, dtype=np.float32)
    kernels.paged[(4,)](device.tensor(cache), device.tensor(table), out, 6, P=8, D=16)
    padded = np.concatenate([cache, np.zeros((1, 8, 16), np.float32)])
    np.testing.assert_array_equal(out.numpy(), padded[table].sum(axis=1))


def test_a_pointer_may_be_chosen_by_data(device: LiveLauncher) -> None:
    x = np.array([1, -1, 2, -2], np.float32)
    y = np.array([5, 6, 7, 8], np.float32)
    out = device.zeros(4, 4, dtype=np.float32)
    kernels.choose[(4,)](device.tensor(x), device.tensor(y), out, B=4)
    np.testing.assert_array_equal(out.numpy(), np.where(x[:, None] > 0, y, x))
    assert written_params(device.binary.module) == {2}


# -- programs that depend on each other -------------------------------------------------------


@pytest.mark.adr("0031-D2")
@pytest.mark.parametrize(("programs", "groups", "width"), [(1, 1, 16), (37, 5, 16), (64, 1, 64)])
def test_a_lock_lets_one_program_in_at_a_time(
    device: LiveLauncher, programs: int, groups: int, width: int
) -> None:
    x = RNG.integers(-9, 9, (programs, width)).astype(np.float32)
    out, locks = device.zeros(groups, width, dtype=np.float32), device.zeros(2 * groups)
    kernels.locked_sum[(programs,)](device.tensor(x), out, locks, B=width, GROUP=groups)
    expected = [x[first::groups].sum(axis=0) for first in range(groups)]
    np.testing.assert_array_equal(out.numpy(), expected)
    assert locks.numpy().tolist() == [0] * groups + [1] * groups


def test_a_tile_counter_shares_out_the_work(device: LiveLauncher) -> None:
    x = RNG.standard_normal((50, 16)).astype(np.float32)
    out, counter = device.zeros(50, 16, dtype=np.float32), device.zeros(1)
    kernels.persistent_scale[(8,)](device.tensor(x), out, counter, 50, B=16)
    np.testing.assert_array_equal(out.numpy(), 2 * x)
    assert counter.numpy().tolist() == [50 + 8]


def test_a_persistent_product_keeps_its_inner_loop_whole(device: LiveLauncher) -> None:
    a = RNG.integers(-3, 4, (100, 64)).astype(np.float16)
    b = RNG.integers(-3, 4, (64, 70)).astype(np.float16)
    c, counter = device.zeros(100, 70, dtype=np.float32), device.zeros(1)
    args = (device.tensor(a), device.tensor(b), c, counter, 100, 70, 64)
    kernels.persistent_matmul[(3,)](*args, BM=32, BN=32, BK=16)
    np.testing.assert_array_equal(c.numpy(), a.astype(np.float32) @ b.astype(np.float32))
    gemms = [command for command in device.done.trace.commands() if isinstance(command, Gemm)]
    assert len(gemms) <= 3 * 4


def test_the_last_program_sees_what_all_others_stored(device: LiveLauncher) -> None:
    x = RNG.integers(-9, 9, 320).astype(np.float32)
    out = device.zeros(1, dtype=np.float32)
    parts, counter = device.zeros(20, dtype=np.float32), device.zeros(1)
    kernels.last_one_sums[(20,)](device.tensor(x), parts, out, counter, B=16)
    assert out.numpy()[0] == x.sum()


@pytest.mark.adr("0031-D2")
def test_programs_that_wait_let_those_they_wait_for_go_on(device: LiveLauncher) -> None:
    flags, x = device.zeros(12), device.zeros(12)
    kernels.relay[(12,)](flags, x, 12)
    assert x.numpy().tolist() == [100 + 11 - i for i in range(12)]


def test_a_bounded_wait_ends_and_lets_others_run(device: LiveLauncher) -> None:
    flag, out = device.zeros(1), device.zeros(4)
    kernels.bounded_wait[(4,)](flag, out, 5)
    assert set(out.numpy().tolist()) <= {0, 7}
    kernels.bounded_wait[(4,)](flag, out, 5)
    assert out.numpy().tolist() == [7] * 4


def test_a_poll_waits_for_what_others_add(device: LiveLauncher) -> None:
    flag, box, out = device.zeros(1), device.zeros(6), device.zeros(1)
    kernels.mailbox[(6,)](flag, box, out)
    assert out.numpy()[0] == 1 + 2 + 3 + 4 + 5
    assert box.numpy().tolist() == [15, 1, 2, 3, 4, 5]


def test_a_poll_of_a_tile_waits_for_all_of_it(device: LiveLauncher) -> None:
    flags, out = device.zeros(8), device.zeros(8)
    kernels.poll_all[(8,)](flags, out, B=8)
    assert out.numpy().tolist() == [1] * 8


def test_a_poll_that_nobody_answers_is_a_deadlock(device: LiveLauncher) -> None:
    with pytest.raises(DeadlockError, match=r"1 of 4 programs .*\n  at live_kernels.py:\d+"):
        kernels.poll_all[(4,)](device.zeros(8), device.zeros(8), B=8)


def test_a_poll_gives_up_when_nothing_happens_any_more(device: LiveLauncher) -> None:
    flag, out = device.zeros(1), device.zeros(4)
    kernels.poll_with_timeout[(4,)](flag, out)
    assert set(out.numpy().tolist()) <= {5, 6}
    assert flag.numpy()[0] == 1


def test_programs_print_in_order(device: LiveLauncher, capsys: pytest.CaptureFixture[str]) -> None:
    kernels.talk[(4,)](device.tensor(np.array([1, 0, 1, 1], np.int32)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("idx")[0] for line in lines] == [f"pid ({i}, 0, 0) " for i in (0, 2, 3)]


@pytest.mark.adr("0031-D5")
def test_two_runs_do_the_same_in_the_same_order() -> None:
    seen = []
    for _ in range(2):
        launcher = LiveLauncher()
        with activate(launcher):
            x = np.arange(37 * 16, dtype=np.float32).reshape(37, 16) / 7
            out, locks = launcher.zeros(5, 16, dtype=np.float32), launcher.zeros(10)
            kernels.locked_sum[(37,)](launcher.tensor(x), out, locks, B=16, GROUP=5)
        ids = [group.program_ids.tolist() for group in launcher.done.trace.groups]
        seen.append((out.numpy().tobytes(), ids, atomics(launcher.done.trace)))
    assert seen[0] == seen[1]


# -- addresses --------------------------------------------------------------------------------


@pytest.mark.adr("0031-D4")
def test_pointers_may_be_loaded(device: LiveLauncher) -> None:
    sizes = [(32, 48, 64), (64, 16, 32), (16, 16, 96)]
    tensors: list[tuple[Tensor, Tensor, Tensor]] = []
    for m, n, k in sizes:
        a, b = (RNG.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
        tensors.append((device.tensor(a), device.tensor(b), device.zeros(m, n, dtype=np.float16)))
    columns = [
        device.tensor(np.array([t.data_ptr() for t in column], np.int64))
        for column in zip(*tensors, strict=True)
    ]
    where = device.tensor(np.array(sizes, np.int32))
    kernels.grouped_matmul[(4,)](*columns, where, 3, 0, BM=16, BN=16, BK=16)
    for x, y, c in tensors:
        expected = x.numpy().astype(np.float32) @ y.numpy().astype(np.float32)
        np.testing.assert_array_equal(c.numpy(), expected.astype(np.float16))
    assert -1 in written_params(device.binary.module)
    reached = {pointer.buffer.address for pointer in device.done.reached}
    assert reached == {item.data_ptr() for row in tensors for item in row}


@pytest.mark.adr("0031-D4")
def test_lanes_of_one_tile_may_go_to_other_tensors(device: LiveLauncher) -> None:
    tensors = [device.tensor(RNG.standard_normal(40).astype(np.float32)) for _ in range(3)]
    before = np.stack([tensor.numpy() for tensor in tensors])
    addresses = device.tensor(np.array([tensor.data_ptr() for tensor in tensors], np.int64))
    which = RNG.integers(0, 3, 40).astype(np.int32)
    out = device.zeros(40, dtype=np.float32)
    kernels.gather_from[(3,)](addresses, device.tensor(which), out, 40, B=16)
    lane = np.arange(40)
    np.testing.assert_array_equal(out.numpy(), before[which, lane])
    before[which, lane] += 1
    np.testing.assert_array_equal(np.stack([tensor.numpy() for tensor in tensors]), before)


@pytest.mark.parametrize("kept_bytes", [0, 32 << 20])
def test_dropping_values_after_their_last_use_changes_nothing(
    device: LiveLauncher, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr(strand, "_KEPT_BYTES", kept_bytes)
    test_a_lock_lets_one_program_in_at_a_time(device, 37, 5, 16)
    test_pointers_may_be_loaded(device)
    test_a_called_function_may_decide_by_data(device)
    test_the_last_program_sees_what_all_others_stored(device)
    test_a_persistent_product_keeps_its_inner_loop_whole(device)


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.adr("0031-D3")
def test_waiting_for_nobody_is_a_deadlock_with_its_line(device: LiveLauncher) -> None:
    flag, out = device.zeros(1), device.zeros(5)
    with pytest.raises(DeadlockError) as caught:
        kernels.spin[(5,)](flag, out)
    lines = Path(kernels.__file__).read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "tl.load(flag, volatile" in text)
    assert str(caught.value) == (
        "kernel spin cannot end: 4 of 5 programs wait in loops for memory that no program changes "
        f"any more\n  at live_kernels.py:{line}: programs (1, 0, 0), (2, 0, 0), (3, 0, 0), "
        "(4, 0, 0)"
    )
    flag.buffer.bytes[0] = 1
    kernels.spin[(5,)](flag, out)
    assert out.numpy().tolist() == [1] * 5


@pytest.mark.adr("0031-D3")
def test_only_those_that_wait_are_named_where_others_return_early(device: LiveLauncher) -> None:
    mode = device.tensor(np.array([1, 0, 2, 0], np.int32))
    flag, out = device.zeros(1), device.zeros(4)
    with pytest.raises(DeadlockError, match=r"(?s)2 of 4 .*: programs \(1, 0, 0\), \(3, 0, 0\)$"):
        kernels.spin_or_return[(4,)](flag, mode, out)
    flag.buffer.bytes[0] = 1
    kernels.spin_or_return[(4,)](flag, mode, out)
    assert out.numpy().tolist() == [0, 1, 0, 1]


@pytest.mark.adr("0031-D3")
def test_a_lock_that_was_left_taken_is_a_deadlock(device: LiveLauncher) -> None:
    x, out = device.zeros(4, 16, dtype=np.float32), device.zeros(1, 16, dtype=np.float32)
    locks = device.tensor(np.array([1, 0], np.int32))
    with pytest.raises(DeadlockError, match=r"4 of 4 programs .*\n  at live_kernels.py:\d+"):
        kernels.locked_sum[(4,)](x, out, locks, B=16, GROUP=1)


def test_a_loop_that_computes_the_same_forever_is_found(device: LiveLauncher) -> None:
    with pytest.raises(DeadlockError, match=r"live_kernels\.py"):
        kernels.never[(1,)](device.zeros(1))


def test_a_loaded_address_of_no_tensor_names_the_program_and_the_line(
    device: LiveLauncher,
) -> None:
    addresses = device.tensor(np.array([64], np.int64))
    which, out = device.zeros(16), device.zeros(16, dtype=np.float32)
    with pytest.raises(BadPointerError, match=r"tt.load at live_kernels.py:\d+ .*0x40 .*\(0, 0, 0"):
        kernels.gather_from[(1,)](addresses, which, out, 16, B=16)


def test_an_access_outside_of_its_tensor_names_it(device: LiveLauncher) -> None:
    index = device.tensor(np.array([9], np.int32))
    x, out = device.zeros(8), device.zeros(1)
    with pytest.raises(OutOfBoundsError, match=r"live_kernels.py:\d+ reads 4 bytes .*\+36"):
        kernels.far_load[(1,)](index, x, out)
    index.buffer.bytes[0] = 7
    kernels.far_load[(1,)](index, x, out)


def test_a_parameter_that_is_no_tensor_is_refused_where_it_is_used(device: LiveLauncher) -> None:
    index, x, out = device.tensor(np.array([1], np.int32)), device.zeros(8), device.zeros(1)
    kernels.far_load[(1,)](index, x, out)
    module = device.binary.module
    params: list[Any] = [PointerArg(index.buffer), 5, PointerArg(out.buffer)]
    with pytest.raises(UsageError, match="parameter 1, which must be a tensor, but got 5"):
        InterleavedLaunch(
            module, (1, 1, 1), {}, params, device.memory.find, num_warps=4, num_stages=1
        ).execute()
