"""Operations of eager programs and the cache: what their phase and their operands decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.hardware import load_machine  # noqa: E402
from kernbench.kernel_time import KernelOperand  # noqa: E402
from kernbench.library_kernels import AutogradPhase, Reuse  # noqa: E402
from kernbench.op_log import Limit, Template  # noqa: E402
from kernbench.torch_bridge.base.operation_timing import GraphRun, held_steps  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402
from tests.torch_bridge.compiler.test_compiler import run_compiled  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

aten = torch.ops.aten
MACHINE = load_machine("rtx-4090", 1)
COSTS = OperationCosts(MACHINE, Float32())
MIB = 2**20


def empty(*shape: int) -> Any:
    return torch.empty(shape, dtype=torch.float16, device="meta")


def template(phase: AutogradPhase, func: Any, *args: Any) -> Template:
    result = func(*args)
    timing = COSTS.timing(func, describe(func), args, {}, result, 0)
    return timing.in_phase(phase).template(True)


@pytest.mark.adr("0048-D4", "0048-D6")
def test_small_results_stay_in_the_cache_and_large_ones_do_not() -> None:
    small, large = empty(8 * MIB), empty(64 * MIB)
    bytes_of = {
        phase: template(phase, aten.relu.default, small).hbm_bytes / small.nbytes
        for phase in AutogradPhase
    }
    assert bytes_of == {
        AutogradPhase.UNRECORDED: 0,
        AutogradPhase.RECORDED: 1,
        AutogradPhase.BACKWARD: 0,
    }
    # Read: a gradient and the output that the forward kept; written: a gradient.
    gradient, output = empty(4 * MIB), empty(4 * MIB)
    kept = template(AutogradPhase.BACKWARD, aten.threshold_backward.default, gradient, output, 0)
    assert kept.hbm_bytes == 8 * MIB
    for phase in AutogradPhase:
        assert template(phase, aten.relu.default, large).hbm_bytes == 2 * large.nbytes
    result = template(AutogradPhase.UNRECORDED, aten.relu.default, small)
    assert result.limits_ps[Limit.HBM] == 0
    cache = MACHINE.sip.cache
    assert cache is not None
    assert result.limits_ps[Limit.CACHE] == pytest.approx(
        2 * small.nbytes / float(cache.bandwidth_gbps) * 1e3, rel=1e-3
    )


def convolution() -> tuple[Any, ...]:
    image, weight = empty(1, 512, 7, 7), empty(512, 512, 3, 3)
    return (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def selection() -> tuple[Any, ...]:
    return empty(50_000, 64), torch.empty(9, dtype=torch.int64, device="meta")


@pytest.mark.adr("0048-D5")
@pytest.mark.parametrize(
    ("func", "args", "cold"),
    [
        (aten.mm.default, (empty(1, 4096), empty(4096, 1024)), 4096 * 1024),
        (aten.addmm.default, (empty(1024), empty(8, 4096), empty(4096, 1024)), 4096 * 1024),
        (aten.mv.default, (empty(1024, 4096), empty(4096)), 4096 * 1024),
        (aten.embedding.default, selection(), 9 * 64),
        (aten.convolution.default, convolution(), 512 * 512 * 9),
    ],
)
def test_weights_come_from_memory(func: Any, args: Any, cold: int) -> None:
    result = template(AutogradPhase.UNRECORDED, func, *args)
    assert result.hbm_bytes == pytest.approx(2 * cold, rel=0.02)


@pytest.mark.adr("0048-D4")
def test_products_of_activations_find_both_operands() -> None:
    result = template(
        AutogradPhase.UNRECORDED, aten.bmm.default, empty(64, 64, 64), empty(64, 64, 64)
    )
    assert result.hbm_bytes == 0


SIZE = 7 * MIB
HBM_GBPS = float(MACHINE.sip.cube.hbm_bandwidth_gbps * MACHINE.sip.cube.hbm_efficiency)
HBM_MS = 2 * SIZE / HBM_GBPS / 1e6
"""How long HBM moves one tensor of ``SIZE`` elements."""


def times(printed: str) -> list[float]:
    """Return what a program printed of one operation: recorded, in a backward, unrecorded."""
    result = next(line for line in printed.splitlines() if line.startswith("times"))
    return [float(word) for word in result.split()[1:]]


@pytest.mark.adr("0048-D4")
def test_a_program_is_asked_for_its_phase(capfd: pytest.CaptureFixture[str]) -> None:
    simulated("phases.py", SIZE, "pytorch", machine="rtx-4090:1", data=False)
    recorded, backward, unrecorded = times(capfd.readouterr().out)
    # From memory: what is written, what the forward kept, and nothing.
    assert recorded == pytest.approx(HBM_MS, rel=0.15)
    assert backward == pytest.approx(HBM_MS, rel=0.15)
    assert unrecorded < 0.7 * HBM_MS


@pytest.mark.adr("0048-D7")
def test_triton_kernels_take_what_operations_take(capfd: pytest.CaptureFixture[str]) -> None:
    simulated("phases.py", SIZE, "pytorch", "triton", machine="rtx-4090:1", data=False)
    lines = capfd.readouterr().out.splitlines()
    by_pytorch, by_triton = times(lines[0]), times(lines[1])
    # Autograd records nothing inside the forward of a function that a program defines.
    assert by_triton[0] == by_triton[2]
    assert by_triton[1:] == pytest.approx(by_pytorch[1:], rel=0.1)


@pytest.mark.campaign
@pytest.mark.adr("0048-D7")
@pytest.mark.slow
def test_compiled_graphs_have_a_phase_and_weights(tmp_path: Path) -> None:
    args = [f"{SIZE}", "compiled", "weighted"]
    done = run_compiled(tmp_path, "phases.py", "--no-data", machine="rtx-4090", args=args)
    assert done.returncode == 0, done.stderr
    recorded, backward, unrecorded = times(done.stdout)
    # From memory: the result, and a byte of each element for the backward; then that byte alone;
    # and nothing.
    assert recorded == pytest.approx(1.5 * HBM_MS, rel=0.15)
    assert backward == pytest.approx(0.5 * HBM_MS, rel=0.15)
    assert unrecorded < 0.5 * HBM_MS
    weighted = times(done.stdout.partition("times")[2])
    assert weighted[2] == pytest.approx(HBM_MS, rel=0.15)


@pytest.mark.adr("0048-D7")
def test_operands_of_products_are_taken_for_weights(capfd: pytest.CaptureFixture[str]) -> None:
    simulated("triton_product.py", machine="rtx-4090:1", data=False)
    recorded, unrecorded = times(capfd.readouterr().out)
    assert recorded == unrecorded


@pytest.mark.adr("0048-D7")
@pytest.mark.parametrize(
    ("phase", "loaded_share", "stored_share", "found"),
    [
        (AutogradPhase.UNRECORDED, 0.5, 0.5, (16, 16)),
        (AutogradPhase.UNRECORDED, 0.75, 0.75, (8, 8)),
        (AutogradPhase.UNRECORDED, 1.5, 1.0, ()),
        (AutogradPhase.RECORDED, 0.5, 0.5, (16, 0)),
        (AutogradPhase.BACKWARD, 0.5, 0.25, (8, 16)),
        (AutogradPhase.BACKWARD, 0.25, 0.5, (16, 16)),
    ],
)
def test_what_triton_kernels_find(
    phase: AutogradPhase, loaded_share: float, stored_share: float, found: tuple[int, ...]
) -> None:
    cache = MACHINE.sip.cache
    assert cache is not None
    shares = loaded_share, stored_share
    operands = [
        KernelOperand(param, 0, size, size, is_loaded=param == 0, is_known=True)
        for param, size in enumerate(int(share * cache.held_bytes) for share in shares)
    ]
    plan: Any = SimpleNamespace(has_products=False, operands=operands)
    assert held_steps(Reuse(phase), plan, MACHINE.sip) == found
    unknown: Any = SimpleNamespace(
        has_products=False, operands=[replace(operand, is_known=False) for operand in operands]
    )
    assert held_steps(Reuse(phase), unknown, MACHINE.sip) == ()
    assert held_steps(None, plan, MACHINE.sip) == ()
    all_cold = Reuse(phase, cold_params=(0, 1))
    assert held_steps(all_cold, plan, MACHINE.sip) == ()


@pytest.mark.adr("0048-D7")
@pytest.mark.parametrize("has_products", [True, False])
def test_what_a_graph_is_given_by_others_is_cold(has_products: bool) -> None:
    cache = MACHINE.sip.cache
    assert cache is not None
    size = cache.held_bytes // 4
    operands = [
        KernelOperand(param, 0, size, size, is_loaded=param < 2, is_known=True)
        for param in range(3)
    ]
    plan: Any = SimpleNamespace(has_products=has_products, operands=operands)
    for phase, stored in ((AutogradPhase.BACKWARD, 16), (AutogradPhase.RECORDED, 0)):
        reuse = Reuse(phase, cold_params=(1,))
        assert held_steps(reuse, plan, MACHINE.sip) == (16, 0, stored)


@pytest.mark.adr("0048-D7")
def test_no_other_storage_is_taken_for_one_that_a_graph_was_given() -> None:
    inputs = [torch.empty(8), torch.empty(8), 3]
    graph = GraphRun.of({"is_backward": True, "static_input_idxs": [0, 2]}, inputs)
    assert graph.phase is AutogradPhase.BACKWARD
    assert inputs[0].untyped_storage()._cdata in graph.cold
    inputs[0] = None  # as a backward frees what it has used
    result = [*inputs[1:2], *(torch.empty(8) for _ in range(100))]
    assert not any(item.untyped_storage()._cdata in graph.cold for item in result)
    value = {"is_inference": True}
    assert GraphRun.of(value, []) == (AutogradPhase.UNRECORDED, {})
    assert GraphRun.of({"is_inference": False}, []).phase is AutogradPhase.RECORDED
