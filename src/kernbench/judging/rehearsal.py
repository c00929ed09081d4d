"""A candidate of the judge's own, run once in a worker: what is computed once is there for all."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernbench.judging.executing import Executor
from kernbench.judging.recording import CallRecorder
from kernbench.judging.simulation import in_simulation


@triton.jit  # type: ignore[untyped-decorator]
def _rows(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, ANN
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, at < n, 0.0)
    tl.store(y + tl.program_id(0) * n + at, tl.exp(row) / tl.sum(row, 0), at < n)


def rehearse(machine: str) -> None:
    """Record and execute a small kernel on a machine."""

    def work(_: Any) -> None:
        x = torch.ones(2, 8, device="cuda")
        recorder = CallRecorder([x], has_data=True)
        with torch.no_grad(), recorder.recording():
            y = torch.empty_like(x)
            _rows[(2,)](x, y, 8, BLOCK=8)
            y = torch.relu(y * 2)
        Executor(recorder.finish(y), [x]).run()
        torch.softmax(x.double(), -1).cpu()

    in_simulation(work, machine, check=True)
