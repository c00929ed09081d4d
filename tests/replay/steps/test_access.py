"""Tiles that are loaded straight into where they are stored, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.errors import OutOfBoundsError
from kernbench.replay.steps.access import TileLoad
from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher

ROWS, COLUMNS, BLOCK = 24, 32, 64


@triton.jit
def transpose(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """``out[i, j] = x[j, i]`` of 24 x 32, as PyTorch's compiler writes it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + (at % 24) * 32 + at // 24))


@triton.jit
def swap_halves(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Each block of 64 with its halves swapped."""
    at = tl.arange(0, BLOCK)
    base = tl.program_id(0) * BLOCK
    tl.store(out_ptr + base + at, tl.load(x_ptr + base + (at + BLOCK // 2) % BLOCK))


@triton.jit
def shifted(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at + 1, mask=at + 1 < n, other=7.0))


def replayed(kernel: Any, x: np.ndarray, size: int, *args: int, in_place: bool = False) -> Any:
    launcher = ExecutingLauncher()
    launcher.sanitizer = None  # it watches each command by itself
    with activate(launcher):
        tensor = launcher.tensor(x)
        out = tensor if in_place else launcher.tensor(np.zeros(size, x.dtype))
        kernel[(size // BLOCK,)](tensor, out, *args, BLOCK=BLOCK)
    return out.numpy()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[TileLoad]:
    """The loads that made a tile of their own."""
    tile_loads: list[TileLoad] = []
    load = TileLoad.__call__

    def noted(self: TileLoad, frame: Any) -> None:
        tile_loads.append(self)
        load(self, frame)

    monkeypatch.setattr(TileLoad, "__call__", noted)
    return tile_loads


@pytest.mark.parametrize("dtype", [np.float16, np.int64])
def test_a_transposition_is_copied_once(loads: list[TileLoad], dtype: Any) -> None:
    x = np.arange(ROWS * COLUMNS, dtype=dtype)
    result = replayed(transpose, x, x.size)
    np.testing.assert_array_equal(result, x.reshape(ROWS, COLUMNS).T.reshape(-1))
    assert not loads


def test_what_a_mask_leaves_out_is_stored_as_its_other_value(loads: list[TileLoad]) -> None:
    x = np.arange(2 * BLOCK, dtype=np.float32)
    result = replayed(shifted, x, x.size, 100)
    np.testing.assert_array_equal(result, [*x[1:100], *[7.0] * (x.size - 99)])
    assert not loads


def test_a_tile_of_the_memory_that_it_is_stored_to_is_loaded_first(loads: list[TileLoad]) -> None:
    x = np.arange(4 * BLOCK, dtype=np.float32)
    expected = np.roll(x.reshape(4, BLOCK), BLOCK // 2, axis=1).reshape(-1)
    np.testing.assert_array_equal(replayed(swap_halves, x, x.size, in_place=True), expected)
    assert loads


def test_a_load_outside_of_a_tensor_is_an_error_where_it_is_stored_too() -> None:
    x = np.zeros(ROWS * COLUMNS - 1, np.float32)
    with pytest.raises(OutOfBoundsError, match=r"tt\.load"):
        replayed(transpose, x, ROWS * COLUMNS)
