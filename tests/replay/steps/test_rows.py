"""Rows that are seen in the addresses, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.errors import OutOfBoundsError
from kernbench.replay.steps import rows as rows_module
from kernbench.runtime_api import RuntimeContext


@triton.jit
def copy_rows(
    x, index, y, to, stride, width, ALONG: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr
):
    """Copy rows that ``index`` names to rows that ``to`` names, -1 elsewhere; D columns each."""
    lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source, target = tl.load(index + lane), tl.load(to + lane)
    column = tl.arange(0, D)
    if ALONG == 1:
        at = x + (source[:, None] * stride + column[None, :])
        mask = (source[:, None] >= 0) & (column[None, :] < width)
        value = tl.load(at, mask=mask, other=-1.0)
    else:
        at = x + (column[:, None] + source[None, :] * stride)
        mask = (column[:, None] < width) & (source[None, :] >= 0)
        value = tl.trans(tl.load(at, mask=mask, other=-1.0))
    tl.store(y + (column[None, :] + target[:, None] * D), value, mask=target[:, None] >= 0)


N, ROWS, D = 40, 8, 16


def copied(along: int, width: int, source: list[int], to: list[int]) -> np.ndarray:
    x = np.arange(N * 20, dtype=np.float32).reshape(N, 20)
    with RuntimeContext() as torch:
        y = torch.full((len(to), D), 7.0)
        copy_rows[(len(to) // ROWS,)](
            torch.tensor(x), torch.tensor(source, dtype=torch.int32), y,
            torch.tensor(to, dtype=torch.int32), 20, width, ALONG=along, ROWS=ROWS, D=D,
        )  # fmt: skip
        return np.array(y.tolist(), dtype=np.float32)


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("width", [D, 11])
def test_rows_that_data_names_are_copied_whole_or_in_part(along: int, width: int) -> None:
    generator = np.random.default_rng(along)
    source = generator.integers(-1, N, 4 * ROWS).tolist()
    to = generator.permutation(4 * ROWS)
    to[5] = -1
    expected = np.full((len(to), D), 7.0, dtype=np.float32)
    x = np.arange(N * 20, dtype=np.float32).reshape(N, 20)
    for row, target in zip(source, to.tolist(), strict=True):
        if target >= 0:
            expected[target] = -1
            if row >= 0:
                expected[target, :width] = x[row, :width]
    assert np.array_equal(copied(along, width, source, to.tolist()), expected)


@pytest.mark.parametrize("along", [0, 1])
def test_a_row_that_ends_outside_of_its_tensor_is_refused(along: int) -> None:
    source = [0] * (ROWS - 1) + [N]
    with pytest.raises(OutOfBoundsError, match=r"test_rows\.py"):
        copied(along, D, source, list(range(ROWS)))


def test_whole_rows_are_not_read_by_element(monkeypatch: pytest.MonkeyPatch) -> None:
    result = []
    original = rows_module.rows_along

    def noted(*args):
        result.append(original(*args))
        return result[-1]

    monkeypatch.setattr("kernbench.replay.steps.access.rows_along", noted)
    copied(1, D, list(range(ROWS)), list(range(ROWS)))
    copied(0, D, list(range(ROWS)), list(range(ROWS)))
    assert sum(item is not None for item in result) == 4


@triton.jit
def add_parts_of_rows(x, index, y, count, ROWS: tl.constexpr, D: tl.constexpr):
    """Add up the parts of D columns of the rows that ``index`` names, by a pointer that moves."""
    lane, column = tl.arange(0, ROWS), tl.arange(0, D)
    at = x + (tl.load(index + lane)[:, None] * (count * D) + column[None, :])
    total = tl.zeros((ROWS, D), tl.float32)
    for _ in range(count):
        total += tl.load(at)
        at += D
    tl.store(y + (lane[:, None] * D + column[None, :]), total)


def test_rows_that_data_names_move_with_the_loop() -> None:
    x = np.arange(N * 3 * D, dtype=np.float32).reshape(N, 3 * D)
    source = [5, 2, 39, 0, 7, 7, 1, 20]
    with RuntimeContext() as torch:
        y = torch.empty((ROWS, D))
        index = torch.tensor(source, dtype=torch.int32)
        add_parts_of_rows[(1,)](torch.tensor(x), index, y, 3, ROWS=ROWS, D=D)
        result = np.array(y.tolist(), dtype=np.float32)
    np.testing.assert_array_equal(result, x[source].reshape(ROWS, 3, D).sum(1))
