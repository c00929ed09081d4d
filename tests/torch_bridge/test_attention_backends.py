"""Attention takes the time of the kernels that PyTorch 2.13 takes on the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from kernbench.hardware import load_machine  # noqa: E402
from kernbench.library_kernels import AttentionProblem  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts  # noqa: E402
from kernbench.torch_bridge.costs.attention import AttentionBackends  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

aten = torch.ops.aten
FLASH, EFFICIENT = "aten._scaled_dot_product_flash_attention", "aten._x_efficient_attention"
PLAIN = AttentionProblem(batch=2, q_len=512, kv_len=512, heads=8, kv_heads=8, head_dim=128)


def chosen(
    machine: str,
    problem: AttentionProblem = PLAIN,
    *,
    name: str = FLASH,
    masked: bool = False,
    ragged: bool = False,
) -> str:
    backends = AttentionBackends(load_machine(machine, 1).spec)
    return backends.chosen(name, problem, masked, ragged, backends.allowed())


def test_hopper_and_blackwell_ask_cudnn_first_and_others_flash_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = ("a100-sxm-80g", "h100-sxm", "b200", "b300", "l40s")
    assert [chosen(each) for each in machines] == ["flash2", "cudnn", "cudnn", "flash2", "flash2"]
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert {chosen(each) for each in machines} == {"flash2"}


def test_each_kind_takes_only_what_its_kernels_do() -> None:
    wide, wider = replace(PLAIN, head_dim=192), replace(PLAIN, head_dim=512)
    odd, single = replace(PLAIN, head_dim=100), replace(PLAIN, kv_len=1)
    full = replace(PLAIN, q_bytes=4, kv_bytes=4, dtype="tf32")
    for problem, hopper, blackwell in (
        (wide, "cudnn", "flash2"),
        (wider, "efficient", "efficient"),
        (odd, "flash2", "flash2"),
        (single, "flash2", "flash2"),
        (full, "efficient", "efficient"),
    ):
        assert (chosen("h100-sxm", problem), chosen("b200", problem)) == (hopper, blackwell)
    assert chosen("h100-sxm", masked=True) == "cudnn"
    assert chosen("a100-sxm-80g", masked=True) == "efficient"
    assert chosen("a100-sxm-80g", ragged=True) == "efficient"
    assert chosen("h100-sxm", name=EFFICIENT) == "efficient"
    # Without data, masked attention is that operation whatever the device would choose.
    assert chosen("h100-sxm", name=EFFICIENT, masked=True) == "cudnn"


def test_a_program_chooses_among_kinds_and_the_backward_pass_is_of_the_same() -> None:
    costs = OperationCosts(load_machine("a100-sxm-80g", 1), Float32("ieee", "ieee", "ieee"))
    q = torch.empty((4, 16, 1024, 128), dtype=torch.bfloat16, device="meta")
    lse = torch.empty((4, 16, 1024), device="meta")
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    def took(func: Any, *args: Any) -> int:
        return costs.timing(func, describe(func), args, {}, q, 0).template(True).duration_ps

    def both(*kinds: SDPBackend) -> tuple[int, int]:
        with sdpa_kernel(list(kinds)):
            ahead = took(forward, q, q, q, 0.0, True)
        # The backward pass runs when the choice is no longer set.
        return ahead, took(backward, q, q, q, q, q, lse, 0.0, True)

    flash = both(SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    efficient = both(SDPBackend.EFFICIENT_ATTENTION)
    assert all(slow > 1.5 * fast for slow, fast in zip(efficient, flash, strict=True))
    # No kernels of cuDNN are described for this device: flash attention stands for them.
    assert both(SDPBackend.CUDNN_ATTENTION) == flash


def test_values_of_another_size_are_for_memory_efficient_attention() -> None:
    assert chosen("h100-sxm", replace(PLAIN, value_dim=256)) == "cudnn"
    assert chosen("a100-sxm-80g", replace(PLAIN, value_dim=256)) == "efficient"
    assert chosen("a100-sxm-80g", replace(PLAIN, value_dim=128)) == "flash2"


@pytest.mark.parametrize(("value_dim", "is_one"), [(64, True), (128, True), (36, False)])
def test_without_data_values_of_another_size_are_one_operation_if_aligned(
    tmp_path: Path, value_dim: int, is_one: bool
) -> None:
    program = tmp_path / "values.py"
    program.write_text(
        "import torch\n"
        f"q, v = (torch.empty(2, 4, 128, d, device='cuda').half() for d in (64, {value_dim}))\n"
        "out = torch.nn.functional.scaled_dot_product_attention(q, q, v)\n"
        f"assert out.shape == (2, 4, 128, {value_dim})\n"
    )
    context = simulated(program, machine="a100-sxm-80g", data=False)
    names = [each.template.name for each in context.op_log.instances]
    assert any("_scaled_dot_product_" in each for each in names) == is_one
    assert any("softmax" in each for each in names) != is_one
