"""What ``tl.gather`` chooses and ``tl.histogram`` counts must be there, with and without checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import OutOfBoundsError


@triton.jit
def picks(x, index, out, DECIDES: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    if DECIDES:  # noqa: SIM102 - only the inner one is data
        if tl.load(index) > 100:
            return
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(index + at), 0))


@triton.jit
def picks_in_rows(x, index, out, N: tl.constexpr, M: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    where = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + where, tl.gather(tl.load(x + at), tl.load(index + where), 0))


@triton.jit
def counts(x, out, n, MASKED: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    if MASKED:
        value = tl.histogram(values, 8, mask=at < n)
    else:
        value = tl.histogram(values, 8)
    tl.store(out + tl.arange(0, 8), value)


def launched(torch: Any, x: Any, index: Any, out: Any, decides: bool) -> Any:
    picks[(2,)](x, torch.from_numpy(index), out, decides, N=16)
    return out.numpy()


@pytest.mark.adr("0232-D1")
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("value", [-1, 16, -(2**31), 2**31 - 1])
def test_a_gather_of_what_is_not_there_names_index_program_and_lane(
    check: bool, decides: bool, value: int
) -> None:
    index = np.arange(32, dtype=np.int32)[::-1] % 16
    with kernbench.RuntimeContext(machine="ahbm", check=check) as torch:
        x, out = torch.arange(32, dtype="f32"), torch.zeros(32)
        result = launched(torch, x, index, out, decides)
        expected = x.numpy().reshape(2, 16)[[[0], [1]], index.reshape(2, 16)]
        np.testing.assert_array_equal(result, expected.reshape(-1))
    index[21] = value
    words = rf"tt.gather at test_ranges.py:\d+ chooses element {value} of axis 0, which has 16 "
    words += r"\(kernel picks, program \(1, 0, 0\), lane \(5,\)\)"
    with kernbench.RuntimeContext(machine="ahbm", check=check) as torch:
        x, out = torch.arange(32, dtype="f32"), torch.zeros(32)
        with pytest.raises(OutOfBoundsError, match=words):
            launched(torch, x, index, out, decides)


@pytest.mark.adr("0232-D1")
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2"])
@pytest.mark.parametrize("check", [False, True])
def test_short_indices_have_no_sign(dtype: str, check: bool) -> None:
    index = np.arange(255, -1, -1).astype(f"u{dtype[1]}").view(dtype)
    with kernbench.RuntimeContext(machine="ahbm", check=check) as torch:
        x, out = torch.arange(256, dtype="f32"), torch.zeros(256)
        picks[(1,)](x, torch.from_numpy(index), out, False, N=256)
        assert out.tolist() == list(range(255, -1, -1))


@pytest.mark.adr("0232-D1")
def test_the_length_that_counts_is_that_of_the_axis() -> None:
    def run(torch: Any, value: int) -> np.ndarray[Any, Any]:
        index = np.full((8, 16), value, np.int32)
        out = torch.zeros(8, 16)
        x = torch.arange(256, dtype="f32")
        picks_in_rows[(1,)](x, torch.from_numpy(index.reshape(-1)), out, N=16, M=8)
        result: np.ndarray[Any, Any] = out.numpy()
        return result

    with kernbench.RuntimeContext(machine="ahbm") as torch:
        expected = np.broadcast_to(15 * 16 + np.arange(16.0), (8, 16))
        np.testing.assert_array_equal(run(torch, 15), expected)
    with (
        pytest.raises(OutOfBoundsError, match="element 16 of axis 0, which has 16"),
        kernbench.RuntimeContext(machine="ahbm") as torch,
    ):
        run(torch, 16)


@pytest.mark.adr("0232-D1")
@pytest.mark.parametrize("value", [-1, 8])
def test_a_histogram_counts_in_its_bins_alone(value: int) -> None:
    values = np.arange(32, dtype=np.int32) % 8
    values[30] = value

    def run(masked: bool) -> list[int]:
        with kernbench.RuntimeContext(machine="ahbm") as torch:
            out = torch.zeros(8, dtype="i32")
            counts[(1,)](torch.from_numpy(values), out, 30, masked, N=32)
            return [int(item) for item in out.tolist()]

    assert run(masked=True) == np.bincount(values[:30], minlength=8).tolist()
    words = rf"tt.histogram at test_ranges.py:\d+ counts {value} in 8 bins \(0 to 7\)"
    with pytest.raises(OutOfBoundsError, match=words):
        run(masked=False)
