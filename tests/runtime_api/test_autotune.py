"""Autotuned kernels in several runs of one process."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from triton.compiler.compiler import max_shared_mem

from kernbench import RuntimeContext
from kernbench.hardware import Machine, changed_machine, load_machine

BLOCKS = (64, 8192)


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def tuned_scale() -> Any:
    configs = [triton.Config({"BLOCK": block}) for block in BLOCKS]
    return triton.autotune(configs, key=["n"], reset_to_zero=["y"])(scale)


def run(kernel: Any, machine: Machine, n: int = 1 << 18) -> tuple[int, list[dict[str, Any]]]:
    """Return the block that was chosen, and every command of the run."""
    with RuntimeContext(machine=machine, ranks=1, data=False) as torch:
        x, y = torch.empty(n), torch.empty(n)
        kernel[lambda config: (triton.cdiv(n, config["BLOCK"]),)](x, y, n)
        torch.ahbm.synchronize()
        return kernel.best_config.kwargs["BLOCK"], torch.op_log.to_arrow().to_pylist()


@pytest.fixture
def machines() -> list[Machine]:
    """Return one that takes any block, and one whose PEs have no room for the larger one."""
    roomy = load_machine("ahbm", 1)
    return [roomy, changed_machine(roomy, {"sip.pe.tcm_kib": 8})]


@pytest.mark.adr("0097-D1")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_run_on_another_machine_tunes_for_it(
    machines: list[Machine], order: tuple[int, int]
) -> None:
    kernel = tuned_scale()
    chosen = {index: run(kernel, machines[index]) for index in order}
    alone = {index: run(tuned_scale(), machines[index]) for index in order}
    assert chosen == alone
    assert (chosen[0][0], chosen[1][0]) == (8192, 64)


@pytest.mark.adr("0097-D1")
def test_the_second_of_two_equal_runs_does_the_same_as_the_first(machines: list[Machine]) -> None:
    kernel = tuned_scale()
    assert run(kernel, machines[0]) == run(kernel, machines[0])


@pytest.mark.adr("0097-D1")
def test_a_run_inside_another_leaves_the_choices_of_the_outer_one(machines: list[Machine]) -> None:
    kernel, n = tuned_scale(), 1 << 18
    with RuntimeContext(machine=machines[0], ranks=1, data=False) as torch:
        x, y = torch.empty(n), torch.empty(n)
        kernel[lambda config: (triton.cdiv(n, config["BLOCK"]),)](x, y, n)
        outer = dict(kernel.cache)
        assert run(kernel, machines[1])[0] == 64
        assert dict(kernel.cache) == outer
        [config] = outer.values()
        assert config.kwargs["BLOCK"] == 8192
    assert not kernel.cache, "nothing was chosen outside of a run"


@pytest.mark.adr("0097-D2")
def test_choices_on_disk_are_not_taken(
    machines: list[Machine], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    chosen = [run(tuned_scale(), machine)[0] for machine in machines]
    assert chosen == [8192, 64]
    assert not list(tmp_path.rglob("*.autotune.json"))


@pytest.mark.adr("0001-D4")
def test_a_run_on_a_smaller_machine_takes_no_room_from_a_later_one(machines: list[Machine]) -> None:
    @triton.jit
    def fill(y, BLOCK: tl.constexpr):
        tl.store(y + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32))

    @triton.jit
    def double(x, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at) * 2)

    # As in a process that has not launched anything yet.
    max_shared_mem.cache_clear()
    with RuntimeContext(machine=machines[1], ranks=1) as torch:
        fill[(1,)](torch.empty(64), BLOCK=64)
    with RuntimeContext(machine=machines[0], ranks=1) as torch:
        x = torch.ones(8192)
        double[(1,)](x, BLOCK=8192)
        assert x.tolist() == [2.0] * 8192
