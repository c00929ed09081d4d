from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton

import kernbench
from kernbench import ops
from kernbench.ops.kernel import Memo


def a_run() -> list[Any]:
    """Run products and elementwise operations of several types and layouts, each twice."""
    rng = np.random.default_rng(0)
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        for _ in range(2):
            for dtype in (np.float32, np.float16):
                a, b = (rng.standard_normal((24, 24)).astype(dtype) for _ in range(2))
                bias = rng.standard_normal(24).astype(dtype)
                x, y, z = (torch.from_numpy(array) for array in (a, b, bias))
                wide = a.astype(np.float32), b.astype(np.float32), bias.astype(np.float32)
                for result, expected in [
                    (x @ y, wide[0] @ wide[1]),
                    (x.T @ y, wide[0].T @ wide[1]),
                    (ops.matmul(x, y, z), wide[0] @ wide[1] + wide[2]),
                    (ops.relu(x), np.maximum(a, 0)),
                    (ops.neg(x), -a),
                    (x + y, a + b),
                    (x.T + z, a.T + bias),
                ]:
                    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-2, atol=2e-2)
        torch.ahbm.synchronize()
        return [(each.template.name, each.template.duration_ps) for each in torch.op_log.instances]


def test_prepared_launches_are_right_and_take_the_time_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = a_run()
    # The second run of the process finds everything prepared; one without a memo finds nothing.
    assert a_run() == kept
    monkeypatch.setattr(Memo, "get", lambda *_: None)
    assert a_run() == kept


def test_a_prepared_launch_passes_tritons_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        x = torch.empty((16, 16))
        ops.relu(x)
        monkeypatch.setattr(
            triton.knobs.runtime, "launch_enter_hook", lambda data: seen.append(data.get()["name"])
        )
        ops.relu(x)
    assert seen == ["elementwise_flat"]


def test_a_memo_forgets_rather_than_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.ops.kernel._MOST_KEPT", 3)
    memo = Memo()
    for key in range(10):
        memo.keep(key, str(key))
        assert memo[key] == str(key)
        assert len(memo) <= 3
