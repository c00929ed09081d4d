"""Atomics through a launch: planned without data, logged, checked."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from kernbench.errors import OutOfBoundsError
from kernbench.runtime_api import RuntimeContext


@triton.jit
def count(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + at % 4, tl.load(x + at, at < n, other=0), mask=at < n)


@pytest.mark.adr("0031-D9")
def test_an_atomic_that_nobody_reads_needs_no_data() -> None:
    with RuntimeContext(data=False) as torch:
        x, counts = torch.empty(1000), torch.empty(4)
        torch.wait(torch.launch("count", count, x, counts, 1000, grid=(8,), BLOCK=128))
        table = torch.op_log.to_arrow().to_pylist()
    (row,) = [item for item in table if item["kind"] == "atomic" and item["program_count"] == 7]
    assert row["dst_address"] == counts.data_ptr()
    assert (row["bytes"], row["count"]) == (7 * 4 * 4, 7)


def test_the_host_reads_what_atomics_left() -> None:
    with RuntimeContext() as torch:
        x, counts = torch.arange(1000, dtype="f32"), torch.zeros(4)
        count[(8,)](x, counts, 1000, BLOCK=128)
        assert counts.tolist() == [sum(range(first, 1000, 4)) for first in range(4)]


def test_an_atomic_outside_of_its_tensor_is_refused_at_the_launch() -> None:
    with RuntimeContext() as torch:
        x, counts = torch.zeros(1000), torch.zeros(3)
        with pytest.raises(OutOfBoundsError, match=r"tt.atomic at test_atomics.py:\d+ updates 4"):
            count[(8,)](x, counts, 1000, BLOCK=128)
