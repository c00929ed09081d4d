"""Every check has twins: a kernel with the mistake, and the same kernel without it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench import errors
from tests.sanitizer import buggy_kernels as kernels


@pytest.fixture
def torch() -> Iterator[Any]:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=True) as run:
        yield run


def line_of(kernel: Any, text: str) -> str:
    """Return where the kernel's first line with ``text`` is, as errors write it."""
    lines, start = inspect.getsourcelines(kernel.fn)
    return f"buggy_kernels.py:{start + next(i for i, line in enumerate(lines) if text in line)}"


def twins(
    run: Callable[[bool], Any], error: type[Exception], *words: str, absent: tuple[str, ...] = ()
) -> None:
    """Run without the bug, then with it, and look for ``words`` in what the error says."""
    run(False)
    with pytest.raises(error) as failure:
        run(True)
    text = str(failure.value)
    for word in words:
        assert word in text, text
    for word in absent:
        assert word not in text, text


@pytest.mark.adr("0020-D1")
def test_a_gather_out_of_bounds_names_tensor_byte_program_and_line(torch: Any) -> None:
    table = torch.zeros(100, name="table")
    index = torch.arange(100, dtype="i32")

    def run(bug: bool) -> None:
        out = torch.zeros(100)
        kernels.gather[(2,)](table, index, out, 100, BUG=bug, BLOCK=64)
        out.numpy()

    where = line_of(kernels.gather, "tl.load(table_ptr")
    twins(run, errors.OutOfBoundsError, "table (100,)", "+400", "program (0, 0, 0)", where)


@pytest.mark.adr("0020-D2")
def test_a_read_of_memory_that_nothing_wrote_is_an_error(torch: Any) -> None:
    def run(bug: bool) -> None:
        x = torch.empty(100, name="x")
        kernels.fill[(4,)](x, 70 if bug else 100, BLOCK=32)
        y = torch.empty(100)
        kernels.copy[(4,)](x, y, 100, BLOCK=32)
        np.testing.assert_array_equal(y.numpy(), np.arange(100))

    where = line_of(kernels.copy, "tl.load(x_ptr")
    twins(
        run,
        errors.UninitializedReadError,
        f"tt.load at {where} (kernel copy, rank 0, program (2, 0, 0))",
        "x (100,) float32+280 (element 70)",
    )


@pytest.mark.adr("0107-D3")
def test_what_nothing_wrote_may_be_loaded_but_not_used(torch: Any) -> None:
    def run(bug: bool) -> None:
        x, out = torch.empty(16, 16, name="x"), torch.zeros(16)
        kernels.fill_lower_half[(1,)](x, B=16)
        kernels.lower_half[(1,)](x, out, BUG=bug, B=16)
        assert out.tolist() == [(i + 1) ** 2 for i in range(16)]

    load, use = (line_of(kernels.lower_half, text) for text in ("tl.load(", "tl.store("))
    twins(
        run,
        errors.UninitializedReadError,
        f"tt.load at {load} (kernel lower_half, rank 0, program (0, 0, 0))",
        "x (16, 16) float32+4 (element 1), which nothing has written",
        f"tt.store at {use}",
        "through tt.reduce",
    )


@pytest.mark.adr("0020-D2")
def test_copies_fills_and_views_count_as_writes(torch: Any) -> None:
    x = torch.empty(4, 64, name="x")
    x[0].fill_(1)
    x[1].copy_(np.full(64, 2.0, np.float32))
    x[2:].copy_(x[:2])
    y = torch.zeros(256)
    kernels.copy[(1,)](x, y, 256, BLOCK=256)
    np.testing.assert_array_equal(y.numpy().reshape(4, 64)[:, 0], [1, 2, 1, 2])


@pytest.mark.adr("0020-D2")
def test_a_copy_of_unwritten_memory_is_unwritten(torch: Any) -> None:
    x = torch.empty(64, name="x")
    y = torch.zeros(64, name="y")
    y.copy_(x)
    kernels.copy[(1,)](y, torch.zeros(64), 64, BLOCK=64)
    with pytest.raises(errors.UninitializedReadError, match=r"y .*element 0"):
        torch.zeros(1).copy_(y[:1]).numpy()


@pytest.mark.adr("0020-D2")
def test_unwritten_memory_is_poison_with_check_and_zeros_without() -> None:
    for check, expected in ((True, b"\xff" * 8), (False, b"\0" * 8)):
        with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=check) as torch:
            assert torch.empty(2).numpy().tobytes() == expected


@pytest.mark.parametrize("algorithm", ["all_reduce", "all_gather", "broadcast"])
@pytest.mark.parametrize("bug", [False, True])
def test_unwritten_elements_stay_so_through_a_collective(algorithm: str, bug: bool) -> None:
    result = {}

    def worker(rank: int, torch: Any) -> None:
        dist = torch.distributed
        dist.init_process_group()
        x = torch.empty(64, name="x")
        if not bug or rank != 0:
            x.fill_(1)
        else:
            x[:32].fill_(1)
        y = torch.zeros(64)
        if algorithm == "all_reduce":
            dist.all_reduce(x)
        elif algorithm == "broadcast":
            dist.broadcast(x, src=0)
        else:
            gathered = torch.empty(128, name="x")
            dist.all_gather_into_tensor(gathered, x)
            x = gathered[:64]
        kernels.copy[(1,)](x, y, 64, BLOCK=64)
        result[rank] = y.numpy()

    def run() -> None:
        with kernbench.RuntimeContext(machine="ahbm", ranks=2, check=True) as torch:
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)

    if not bug:
        run()
        assert result[1][63] == (2 if algorithm == "all_reduce" else 1)
        return
    with pytest.raises(BaseExceptionGroup) as failure:
        run()
    (first, *_) = failure.value.exceptions
    assert isinstance(first, errors.UninitializedReadError)
    assert "element 32" in str(first)


@pytest.mark.adr("0020-D3")
def test_a_program_that_reads_what_another_writes_is_a_race(torch: Any) -> None:
    def run(bug: bool) -> None:
        x = torch.ones(128, name="x")
        kernels.neighbour[(4,)](x, BUG=bug, BLOCK=32)
        x.numpy()

    twins(
        run,
        errors.DataRaceError,
        line_of(kernels.neighbour, "tl.store(x_ptr"),
        line_of(kernels.neighbour, "x += tl.load"),
        "kernel neighbour, rank 0, program",
        "x (128,) float32+",
    )


@pytest.mark.adr("0020-D3")
def test_programs_that_add_to_one_place_race_unless_by_atomics(torch: Any) -> None:
    x = torch.ones(128, name="x")

    def run(bug: bool) -> None:
        out = torch.zeros(1, name="out")
        kernels.total[(4,)](x, out, BUG=bug, BLOCK=32)
        assert out.item() == 128

    twins(run, errors.DataRaceError, "out (1,) float32+0", line_of(kernels.total, "tl.load(out"))


@pytest.mark.adr("0020-D3")
def test_programs_that_write_one_place_race(torch: Any) -> None:
    x = torch.ones(128, name="x")

    def run(bug: bool) -> None:
        out = torch.zeros(4, name="out")
        kernels.same_place[(4,)](x, out, BUG=bug, BLOCK=32)
        out.numpy()

    where = line_of(kernels.same_place, "tl.store(out_ptr")
    twins(
        run, errors.DataRaceError, f"tt.store at {where}", "program (0, 0, 0)", "program (1, 0, 0)"
    )


@pytest.mark.adr("0020-D4")
@pytest.mark.parametrize(
    ("name", "load", "use"),
    [
        ("unmasked_store", "tl.load(x_ptr", "tl.store(out_ptr"),
        ("undefined_mask", "tl.load(x_ptr", "tl.store(out_ptr"),
        ("undefined_address", "tl.load(x_ptr", "tl.store(out_ptr + index, 1.0)"),
    ],
)
def test_use_of_a_masked_off_lane_names_load_and_use(
    torch: Any, name: str, load: str, use: str
) -> None:
    kernel = getattr(kernels, name)
    dtype = "i32" if name == "undefined_address" else "f32"

    def run(bug: bool) -> None:
        out = torch.zeros(32, name="out")
        kernel[(1,)](torch.arange(20, dtype=dtype), out, 20, BUG=bug, BLOCK=32)
        out.numpy()

    twins(run, errors.UndefinedValueError, line_of(kernel, load), line_of(kernel, use))


@pytest.mark.adr("0020-D4")
def test_a_masked_off_lane_in_a_sum_names_the_sum(torch: Any) -> None:
    def run(bug: bool) -> None:
        out = torch.zeros(3, name="out")
        kernels.row_sum[(3,)](torch.ones(60), out, 20, BUG=bug, BLOCK=32)
        np.testing.assert_array_equal(out.numpy(), [40, 40, 40])

    kernel = kernels.row_sum
    twins(
        run,
        errors.UndefinedValueError,
        f"tt.load at {line_of(kernel, 'mask=at < n)')}",
        "tt.reduce at",
        f"tt.store at {line_of(kernel, 'tl.store(out_ptr')}",
    )


@pytest.mark.adr("0020-D4")
def test_masked_rows_of_a_product_are_fine_but_masked_columns_are_not(torch: Any) -> None:
    def run(bug: bool) -> None:
        a, b, out = torch.ones(10, 12), torch.ones(12, 16), torch.zeros(10, 16)
        kernels.dot_rows[(1,)](a, b, out, 10, 12, BUG=bug, B=16)
        np.testing.assert_array_equal(out.numpy(), np.full((10, 16), 12))

    twins(run, errors.UndefinedValueError, "tt.dot at", line_of(kernels.dot_rows, "tl.store(out"))


@pytest.mark.adr("0020-D4")
def test_a_loop_carries_what_is_undefined(torch: Any) -> None:
    def run(bug: bool) -> None:
        out = torch.zeros(32)
        kernels.carried[(1,)](torch.ones(60), out, 20, 3, BUG=bug, BLOCK=32)
        np.testing.assert_array_equal(out.numpy()[:20], np.full(20, 3))

    twins(run, errors.UndefinedValueError, line_of(kernels.carried, "acc += tl.load"))


@pytest.mark.adr("0020-D5")
def test_a_loaded_index_that_overflows_names_the_operation(torch: Any) -> None:
    index = torch.from_numpy(np.arange(4, dtype=np.int32) * (1 << 16))

    def run(bug: bool) -> None:
        out = torch.zeros(4)
        kernels.far_row[(1,)](torch.zeros(8), index, out, 1 << 16, BUG=bug, BLOCK=4)
        out.numpy()

    twins(
        run,
        errors.AddressOverflowError,
        f"arith.muli at {line_of(kernels.far_row, 'offset = row * stride')}",
        line_of(kernels.far_row, "tl.load(x_ptr + offset)"),
        "program (0, 0, 0)",
    )


@pytest.mark.adr("0020-D5")
def test_a_known_offset_that_overflows_names_the_operation(torch: Any) -> None:
    def run(bug: bool) -> None:
        out = torch.zeros(4)
        kernels.far_block[(1,)](torch.zeros(16), out, 1 << 31 - 1, BUG=bug, BLOCK=4)
        out.numpy()

    twins(
        run,
        errors.AddressOverflowError,
        f"arith.muli at {line_of(kernels.far_block, 'offset = row * stride')}",
        line_of(kernels.far_block, "tl.load(x_ptr"),
    )


@pytest.mark.adr("0020-D6")
def test_nan_that_first_appears_is_a_warning_once_and_an_error_on_request() -> None:
    x = np.ones(64, np.float32)
    x[40] = 0

    def run(bug: bool, *, nan_is_error: bool) -> None:
        with kernbench.RuntimeContext(
            machine="ahbm", ranks=1, check=True, nan_is_error=nan_is_error
        ) as torch:
            value, out = torch.from_numpy(x), torch.zeros(64, name="out")
            for _ in range(2):
                kernels.ratio[(2,)](value, out, BUG=bug, BLOCK=32)
            out.numpy()

    run(False, nan_is_error=True)
    with pytest.warns(errors.NonFiniteWarning) as warns:
        run(True, nan_is_error=False)
    assert len(warns) == 1
    twins(
        lambda bug: run(bug, nan_is_error=True),
        errors.NonFiniteError,
        f"arith.divf at {line_of(kernels.ratio, 'y = x / bottom')}",
        "kernel ratio, rank 0, program (1, 0, 0)",
        line_of(kernels.ratio, "tl.store(out_ptr"),
        "out (64,) float32+160 (element 40)",
    )


@pytest.mark.adr("0020-D6")
def test_nan_that_was_there_before_is_nobodys_fault(torch: Any) -> None:
    x = torch.from_numpy(np.array([np.nan, 1, 2, np.inf], np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = torch.zeros(4)
        kernels.ratio[(1,)](x, out, BUG=True, BLOCK=4)
        np.testing.assert_array_equal(out.numpy(), [np.nan, 2, 2, np.nan])


@pytest.mark.adr("0020-D7")
def test_a_check_never_changes_a_number() -> None:
    result = []
    for check in (False, True):
        with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=check) as torch:
            a = torch.randn(100, 300, dtype="f16")
            b = torch.randn(300, 70, dtype="f16")
            result.append((a @ b).numpy().tobytes())
    assert result[0] == result[1]


def test_check_takes_true_or_false() -> None:
    with pytest.raises(errors.UsageError, match="'yes'"):
        kernbench.RuntimeContext(machine="ahbm", ranks=1, check="yes")  # type: ignore[arg-type]
