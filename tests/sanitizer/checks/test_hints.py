"""What a kernel tells the compiler of its values is held against them."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import WrongHintError


@triton.jit
def in_rows(at, index, n, B: tl.constexpr):
    return tl.max_contiguous(tl.multiple_of(at, B), B)


@triton.jit
def wraps(at, index, n, B: tl.constexpr):
    return tl.max_contiguous(tl.multiple_of(at % n, B), B)


@triton.jit
def sent_to_0(at, index, n, B: tl.constexpr):
    return tl.max_contiguous(tl.multiple_of(tl.where(at < n, at, 0), B), B)


@triton.jit
def by_fours(at, index, n, B: tl.constexpr):
    return tl.max_constancy(at // 4, 4)


@triton.jit
def loaded(at, index, n, B: tl.constexpr):
    return at + tl.multiple_of(tl.load(index), 8)


@triton.jit
def computed(at, index, n, B: tl.constexpr):
    return tl.multiple_of(tl.load(index) * 2 + tl.arange(0, B), 16)


@triton.jit
def assumed(at, index, n, B: tl.constexpr):
    tl.assume(n > tl.program_id(0))
    return at


@triton.jit
def assumed_of_data(at, index, n, B: tl.constexpr):
    row = tl.load(index)
    tl.assume(row % 8 == 0)
    return at + row


@triton.jit
def assumed_in_a_branch(at, index, n, B: tl.constexpr):
    if tl.program_id(0) > 0:
        tl.assume(tl.program_id(0) == 1)
    return at


@triton.jit
def begins_at_3(at, index, n, B: tl.constexpr):
    return tl.multiple_of(at + 3, 16)


@triton.jit
def halved(at, index, n, B: tl.constexpr):
    return tl.max_contiguous(at // 2, B)


@triton.jit
def every_other(at, index, n, B: tl.constexpr):
    return tl.max_contiguous((at * 2) % n, B)


@triton.jit
def by_twos(at, index, n, B: tl.constexpr):
    return tl.max_constancy(at // 2, 4)


@triton.jit
def loaded_from_1(at, index, n, B: tl.constexpr):
    return at + tl.multiple_of(tl.load(index + 1), 8)


@triton.jit
def computed_from_1(at, index, n, B: tl.constexpr):
    return tl.multiple_of(tl.load(index + 1) + tl.arange(0, B), 16)


@triton.jit
def assumed_of_program_0(at, index, n, B: tl.constexpr):
    tl.assume(tl.program_id(0) < 1)
    return at


@triton.jit
def assumed_of_data_from_1(at, index, n, B: tl.constexpr):
    row = tl.load(index + 1)
    tl.assume(row % 8 == 0)
    return at + row


@triton.jit
def hinted(x, y, index, n, offsets: tl.constexpr, B: tl.constexpr):
    own = tl.program_id(0) * B + tl.arange(0, B)
    at = offsets(own, index, n, B)
    tl.store(y + own, tl.load(x + at, mask=at < n, other=0))


@triton.jit
def by_pointer(x, y, first, step: tl.constexpr, B: tl.constexpr):
    source = tl.multiple_of(x + first, 16)
    total = tl.zeros((B,), tl.float32)
    for start in range(0, 64, step):
        total += tl.load(source + tl.multiple_of(start + step, 32) + tl.arange(0, B))
    tl.store(y + tl.arange(0, B), total)


@triton.jit
def decides(x, y, n, B: tl.constexpr):
    first = tl.load(x)
    at = tl.multiple_of(tl.program_id(0) * B + n + tl.arange(0, B), 16)
    tl.assume(first > 0)
    if first < 100:
        tl.store(y + at, 1, mask=at < B)


@triton.jit
def tiles(x, y, stride, BY_COLUMNS: tl.constexpr, B: tl.constexpr):
    rows, columns = tl.arange(0, B), tl.arange(0, B)
    at = rows[:, None] * stride + columns[None, :]
    if BY_COLUMNS:
        at = tl.max_contiguous(at, (B, 1))
    else:
        at = tl.max_contiguous(tl.multiple_of(at, (1, 16)), (1, B))
    tl.store(y + rows[:, None] * B + columns[None, :], tl.load(x + at))


def run(offsets: Any, *, check: bool = True) -> list[float]:
    with kernbench.RuntimeContext(machine="h100-sxm", check=check) as torch:
        index, out = torch.tensor([8, 3], dtype="i32"), torch.zeros(256)
        hinted[(2,)](torch.arange(256, dtype="f32"), out, index, 100, offsets, B=64)
        numbers: list[float] = out.tolist()
    return numbers


@pytest.mark.adr("0232-D5")
@pytest.mark.parametrize(
    "offsets",
    [
        *(in_rows, wraps, sent_to_0, by_fours, loaded, computed),
        *(assumed, assumed_of_data, assumed_in_a_branch),
    ],
)
def test_what_holds_is_no_finding(offsets: Any) -> None:
    assert run(offsets) == run(offsets, check=False)


@pytest.mark.adr("0232-D5")
@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (begins_at_3, r"tl.multiple_of says .* multiples of 16 .*element \(0,\) is 3"),
        (halved, r"tl.max_contiguous says that 64 elements.*element \(1,\) is 0 after 0"),
        (every_other, r"tl.max_contiguous says .*element \(1,\) is 2 after 0"),
        (by_twos, r"tl.max_constancy says that 4 elements are equal.*\(2,\) is 1 after 0"),
        (loaded_from_1, r"tl.multiple_of says .* multiples of 8 .*the value is 3"),
        (computed_from_1, r"tl.multiple_of says .*element \(0,\) is 3"),
        (assumed_of_program_0, r"tl.assume does not hold at .*program \(1, 0, 0\)"),
        (assumed_of_data_from_1, r"tl.assume does not hold at test_hints.py:\d+"),
    ],
)
def test_what_does_not_is_an_error_with_hint_line_and_value(offsets: Any, words: str) -> None:
    with pytest.raises(WrongHintError, match=words):
        run(offsets)


@pytest.mark.adr("0232-D5")
@pytest.mark.parametrize(
    ("first", "step", "words"),
    [
        (4, 32, ""),
        (1, 32, "the value is 4 bytes past an aligned address"),
        (4, 8, "32 .*the value is 8"),
    ],
)
def test_hints_of_pointers_and_in_loops_count(first: int, step: int, words: str) -> None:
    def run() -> None:
        with kernbench.RuntimeContext(machine="h100-sxm", check=True) as torch:
            by_pointer[(1,)](torch.zeros(256), torch.zeros(32), first, step, B=32)

    if not words:
        run()
        return
    with pytest.raises(WrongHintError, match=words):
        run()


@pytest.mark.adr("0232-D5")
@pytest.mark.parametrize(
    ("view", "first", "words"),
    [
        *((0, 4, ""), (4, 0, ""), (1, 3, ""), (3, 1, "")),
        (1, 0, "multiples of 16 at test_hints.py.*the value is 4 bytes past an aligned address"),
        (1, 4, "the value is 20 bytes"),
        (3, 3, "the value is 24 bytes"),
    ],
)
def test_hints_of_views_are_of_addresses(view: int, first: int, words: str) -> None:
    """The oracle: view and offset together are whole pieces of 16 bytes, or are not."""
    assert bool(words) == ((view + first) % 4 != 0)

    def run(torch: Any) -> None:
        y = torch.zeros(32)
        by_pointer[(1,)](torch.zeros(256)[view:], y, first, 32, B=32)
        y.numpy()

    with kernbench.RuntimeContext(machine="h100-sxm", check=True) as torch:
        if not words:
            run(torch)
            return
        with pytest.raises(WrongHintError, match=words):
            run(torch)


@pytest.mark.adr("0232-D5")
def test_each_axis_has_a_hint_of_its_own() -> None:
    def run(torch: Any, stride: int, by_columns: bool) -> None:
        tiles[(1,)](torch.zeros(512), torch.zeros(256), stride, by_columns, B=16)

    with kernbench.RuntimeContext(machine="ahbm", check=True) as torch:
        run(torch, 16, False)
        run(torch, 32, False)
    wrong = ((20, False, r"\(1, 0\) is 20"), (16, True, r"\(1, 0\) is 16"))
    for stride, by_columns, words in wrong:
        with (
            kernbench.RuntimeContext(machine="ahbm", check=True) as torch,
            pytest.raises(WrongHintError, match=words),
        ):
            run(torch, stride, by_columns)


@pytest.mark.adr("0232-D5")
@pytest.mark.parametrize(
    ("first", "n", "words"),
    [(1, 16, ""), (0, 16, "tl.assume does not hold"), (1, 4, "multiples of 16.*is 4")],
)
def test_kernels_that_decide_by_data_are_checked_too(first: int, n: int, words: str) -> None:
    def run() -> None:
        with kernbench.RuntimeContext(machine="ahbm", check=True) as torch:
            y = torch.zeros(32, dtype="i32")
            decides[(1,)](torch.full((1,), first, dtype="i32"), y, n, B=32)
            y.numpy()

    if not words:
        run()
        return
    with pytest.raises(WrongHintError, match=words):
        run()


def test_without_checks_hints_change_nothing() -> None:
    with kernbench.RuntimeContext(machine="ahbm", check=False) as torch:
        y = torch.zeros(256)
        index = torch.tensor([8, 3], dtype="i32")
        hinted[(2,)](torch.ones(256), y, index, 100, begins_at_3, B=64)
        assert y.numpy().sum() == 97
