"""Runs of one plan share what was found of equal launches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kernbench.hardware import load_machine
from kernbench.plans import passes
from kernbench.runtime_api import RuntimeContext
from kernbench.triton_backend import KernelBinary


@pytest.mark.adr("0277-D2")
def test_equal_launches_of_several_runs_are_evaluated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated: Counter[Any] = Counter()
    trace = KernelBinary.trace

    def counted(self: KernelBinary, grid: Any, ints: Any, **options: Any) -> Any:
        evaluated[self.name, grid] += 1
        return trace(self, grid, ints, **options)

    monkeypatch.setattr(KernelBinary, "trace", counted)

    def program(_: int, torch: RuntimeContext) -> None:
        x = torch.empty((4096,), dtype="f32")
        x + x
        torch.ahbm.synchronize()

    runs = passes.ModelRuns(load_machine("h100-sxm"))
    ends = [runs.run(1, program).op_log.end_ps for _ in range(2)]
    assert ends[0] == ends[1]
    assert set(evaluated.values()) == {1}
