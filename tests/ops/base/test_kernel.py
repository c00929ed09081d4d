from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import triton

import kernbench
from kernbench import ops
from kernbench.dtypes import float16
from kernbench.hardware import load_machine
from kernbench.ops.base.kernel import Memo
from kernbench.ops.probe import LaunchRecorder, record_launches
from kernbench.triton_backend import CompiledLauncher


def a_run() -> list[Any]:
    """Run products and elementwise operations of several types and layouts, each twice."""
    rng = np.random.default_rng(0)
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        for _ in range(2):
            for dtype in (np.float32, np.float16):
                a: Any
                b: Any
                a, b = (rng.standard_normal((24, 24)).astype(dtype) for _ in range(2))
                bias: Any = rng.standard_normal(24).astype(dtype)
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
        return [
            (instance.template.name, instance.template.duration_ps)
            for instance in torch.op_log.instances
        ]


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


def test_a_prepared_launch_goes_to_triton_only_while_somebody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    through_triton: list[str] = []
    launch = kernbench.RuntimeContext.launch

    def noted(self: kernbench.RuntimeContext, name: str, *args: Any, **options: Any) -> Any:
        through_triton.append(name)
        return launch(self, name, *args, **options)

    monkeypatch.setattr(kernbench.RuntimeContext, "launch", noted)
    seen: list[str] = []

    def hear(data: Any) -> None:
        seen.append(data.get()["name"])

    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=True) as torch:
        x = torch.ones((16, 16))
        ops.relu(x)
        through_triton.clear()
        assert (ops.relu(x).numpy() == 1).all()
        assert not through_triton
        triton.knobs.runtime.launch_enter_hook.add(hear)
        try:
            ops.relu(x)
        finally:
            triton.knobs.runtime.launch_enter_hook.remove(hear)
        assert (through_triton, seen) == (["relu"], ["elementwise_flat"])
        ops.relu(x)
        assert len(through_triton) == 1
        assert [instance.template.name for instance in torch.op_log.instances][-1] == "relu"


def test_a_prepared_launch_is_refused_where_tcm_is_too_small() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        x = torch.ones((256, 256))
        ops.matmul(x, x)
        ops.matmul(x, x)
        tight = dataclasses.replace(torch.run.devices.sip(0), tcm_bytes=1024)
        torch.run.devices._sips[0] = tight
        with pytest.raises(kernbench.errors.KernbenchError, match=r"1,?024"):
            ops.matmul(x, x)


def test_a_memo_forgets_rather_than_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.ops.base.kernel._MOST_KEPT", 3)
    memo = Memo()
    for key in range(10):
        memo.keep(key, str(key))
        assert memo[key] == str(key)
        assert len(memo) <= 3


def test_what_is_prepared_is_recorded_as_it_was_when_it_was_not() -> None:
    machine = load_machine("ahbm", 1)

    def work(at: LaunchRecorder) -> None:
        x = at.tensor((48, 80), float16)
        ops.matmul(x, at.tensor((80, 16), float16))
        ops.relu(x)

    again = [record_launches(work, machine) for _ in range(3)]
    assert [trace.name for trace in again[0]] == ["gemm", "elementwise_flat"]
    assert repr(again[0]) == repr(again[1]) == repr(again[2])


def a_function_with_calls(seen: list[str]) -> Any:
    """Return a hook that looks like Triton's chains of hooks, but is none."""

    def hear(data: Any) -> None:
        seen.append(data.get()["name"])

    hear.calls = []  # type: ignore[attr-defined]
    return hear


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_any_function_can_be_a_hook(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        x = torch.empty((16, 16))
        ops.relu(x)
        ops.relu(x)
        monkeypatch.setattr(triton.knobs.runtime, hook, a_function_with_calls(seen))
        ops.relu(x)
    assert seen == ["elementwise_flat"]


def elsewhere(torch: Any, x: Any) -> None:
    """Launch for a run while another one is the current one."""
    with kernbench.RuntimeContext(machine="h100-sxm", ranks=1) as inner:
        ops.relu(x)
        assert len(inner.op_log) == 0


def on_another_stream(torch: Any, x: Any) -> None:
    with torch.ahbm.stream(torch.ahbm.Stream()):
        ops.relu(x)


def off_its_sip(torch: Any, x: Any) -> None:
    torch.ahbm.set_device(1)
    ops.relu(x)


def unwritten(torch: Any, x: Any) -> None:
    ops.relu(torch.empty((16, 16))).numpy()


def benchmarked(torch: Any, x: Any) -> None:
    took_ms = torch.launcher.benchmark_ms(lambda: ops.relu(x))
    torch.run.simulation.sleep(round(took_ms * 1e9))


def placed(torch: Any, x: Any) -> None:
    policy = kernbench.policy.DPPolicy(num_cubes=1)
    ops.relu(torch.ones((16, 16), dp=policy))


def ended(torch: Any, x: Any) -> None:
    torch.run.ended = True
    ops.relu(x)


def outcome(condition: Any) -> tuple[Any, ...]:
    """Return what came of a prepared launch: its numbers, error, times."""
    with kernbench.RuntimeContext(machine="ahbm", ranks=2, check=True) as torch:
        x = torch.full((16, 16), -1.0)
        for _ in range(3):
            # Times differ where caches are cold; what is prepared is not all that is warm.
            ops.relu(x)
        torch.synchronize(0)
        error = None
        try:
            condition(torch, x)
            torch.ahbm.synchronize()
        except kernbench.errors.KernbenchError as raised:
            error = type(raised), str(raised)
        log = [
            (
                instance.template.name,
                instance.sips,
                instance.starts_ps,
                instance.ends_ps,
                instance.stream,
            )
            for instance in torch.op_log.instances
        ]
        return error, log, torch.run.simulation.now_ps


@pytest.mark.parametrize(
    ("condition", "refused"),
    [
        (elsewhere, None),
        (on_another_stream, None),
        (benchmarked, None),
        (placed, None),
        (off_its_sip, "SIP"),
        (unwritten, "written"),
        (ended, "ended"),
    ],
)
def test_a_prepared_launch_comes_to_what_it_does_through_triton(
    condition: Any, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = outcome(condition)
    assert result[0] is None if refused is None else refused in result[0][1]
    monkeypatch.setattr(CompiledLauncher, "plain", None)
    assert outcome(condition) == result
