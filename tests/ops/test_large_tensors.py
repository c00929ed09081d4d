from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernbench import RuntimeContext

ROWS, COLUMNS = 1 << 17, (1 << 14) + 128
BYTES_PER_PS = 3.35
"""Of an H100's memory."""


@pytest.mark.parametrize(
    ("operation", "moved"),
    [
        (lambda x: x.exp(), 2),
        (lambda x: x + x.T.T, 3),
        (lambda x: x.float(), 3),
        (lambda x: x.T.contiguous(), 2),
        (lambda x: x.sum(-1), 1),
        (lambda x: x.sum(0), 1),
        (lambda x: x.softmax(-1), 2),
        (lambda x: x.cumsum(-1), 2),
        (lambda x: x[:, :64] @ x[:64], 1),
    ],
    ids=["map", "pair", "cast", "transpose", "rows", "columns", "softmax", "scan", "product"],
)
def test_tensors_of_more_than_2_31_elements_are_computed(
    operation: Callable[[Any], Any], moved: int
) -> None:
    with RuntimeContext("h100-sxm", ranks=1, data=False) as torch:
        x = torch.empty(ROWS, COLUMNS, dtype="bf16")
        torch.ahbm.synchronize()
        before_ps = torch.op_log.end_ps
        operation(x)
        torch.ahbm.synchronize()
        took_ps = torch.op_log.end_ps - before_ps
    assert x.numel() > 1 << 31
    # Its bytes at the bandwidth of memory are the least time.
    assert took_ps > moved * 2 * x.numel() / BYTES_PER_PS
