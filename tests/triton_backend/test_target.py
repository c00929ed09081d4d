"""What machines say that they are, to host code and to kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from kernbench import RuntimeContext
from kernbench.errors import MachineError
from kernbench.hardware import load_machine, machine_text
from kernbench.triton_backend import announced_target


@triton.jit
def say_target(out):
    if tl.target_info.is_cuda():
        tl.store(out, 1)
    if tl.target_info.cuda_capability_geq(9):
        tl.store(out + 1, 1)
    if tl.target_info.is_hip():
        tl.store(out + 2, 1)


def ask(machine: str) -> tuple[list[int], GPUTarget]:
    with RuntimeContext(machine=machine) as torch:
        out = torch.zeros(3, dtype=torch.int32)
        say_target[(1,)](out)
        return out.tolist(), triton.runtime.driver.active.get_current_target()


@pytest.mark.adr("0006-D6")
@pytest.mark.adr("0006-D7")
def test_each_machine_of_a_process_hears_its_own_target_from_every_side() -> None:
    answers = {machine: ask(machine) for machine in ("ahbm", "h100-sxm", "a100-sxm-80g", "mi300x")}
    assert answers["h100-sxm"] == ([1, 1, 0], GPUTarget("cuda", 90, 32))
    assert answers["a100-sxm-80g"] == ([1, 0, 0], GPUTarget("cuda", 80, 32))
    for machine in ("ahbm", "mi300x"):
        kernel, host = answers[machine]
        assert (kernel, host.backend) == ([0, 0, 0], "kernbench")
    assert ask("ahbm") == answers["ahbm"], "what was compiled for another machine stays there"


@pytest.mark.adr("0006-D7")
def test_what_an_earlier_process_compiled_is_found_by_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    expected = {"h100-sxm": [1, 1, 0], "ahbm": [0, 0, 0], "h200": [1, 1, 0]}
    for _ in range(2):
        say_target.device_caches.clear()
        assert {machine: ask(machine)[0] for machine in expected} == expected
    kernels = list(tmp_path.glob("*/say_target.ttir"))
    assert len(kernels) == 2, "machines of one capability share it"


def test_what_a_program_is_told_does_not_reach_kernels() -> None:
    with RuntimeContext(machine="ahbm") as torch, announced_target("cuda", 90):
        assert triton.runtime.driver.active.get_current_target() == GPUTarget("cuda", 90, 32)
        out = torch.zeros(3, dtype=torch.int32)
        say_target[(1,)](out)
        assert out.tolist() == [0, 0, 0]


@pytest.mark.parametrize("given", ["9", "cuda", "sm_90", "0.0"])
def test_a_capability_that_is_none_names_the_key(given: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    text, _ = machine_text("h100-sxm")
    path.write_text(text.replace('cuda_capability: "9.0"', f'cuda_capability: "{given}"'))
    with pytest.raises(MachineError, match="cuda_capability"):
        load_machine(str(path), 1)
