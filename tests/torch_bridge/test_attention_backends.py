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
from tests.tiers import daily, of_campaigns  # noqa: E402
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
    assert [chosen(machine) for machine in machines] == [
        "flash2",
        "cudnn",
        "cudnn",
        "flash2",
        "flash2",
    ]
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert {chosen(machine) for machine in machines} == {"flash2"}


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


def test_a_rank_sets_the_order_of_kinds_for_itself(tmp_path: Path) -> None:
    program = tmp_path / "order.py"
    program.write_text(
        "import torch\n"
        "import torch.distributed as dist\n"
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "dist.init_process_group()\n"
        "kinds = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION][:: 1 - 2 * dist.get_rank()]\n"
        "q = torch.ones(1, 1, 8, 8, device='cuda')\n"
        "with sdpa_kernel(kinds, set_priority=True):\n"
        "    torch.nn.functional.scaled_dot_product_attention(q, q, q)\n"
        "    dist.barrier()\n"
        "    assert torch._C._get_sdp_priority_order()[:2] == [int(kind) for kind in kinds]\n"
    )
    simulated(program, nprocs=2)


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
    names = [instance.template.name for instance in context.op_log.instances]
    assert any("_scaled_dot_product_" in name for name in names) == is_one
    assert any("softmax" in name for name in names) != is_one


KINDS = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

q = torch.zeros(2, 4, 256, 64).half().cuda()
mask = torch.zeros(256, 256).half().cuda()
for kind in {kinds}:
    with sdpa_kernel(getattr(SDPBackend, kind)):
        attend(q, q, q, attn_mask=mask if {masked} else None)
"""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize("masked", daily(True, of=(False, True)))
def test_kinds_that_a_program_asks_for_one_after_another_take_their_own_time(
    tmp_path: Path, masked: bool, data: bool
) -> None:
    def took(*kinds: str) -> list[int]:
        program = tmp_path / "kinds.py"
        program.write_text(KINDS.format(kinds=kinds, masked=masked))
        log = simulated(program, machine="h100-sxm", data=data).op_log
        return [
            instance.template.duration_ps
            for instance in log.instances
            if "_scaled_dot_product_" in instance.template.name
            for _ in instance.starts_ps
        ]

    def names(*kinds: str) -> set[str]:
        program = tmp_path / "kinds.py"
        program.write_text(KINDS.format(kinds=kinds, masked=masked))
        log = simulated(program, machine="h100-sxm", data=data).op_log
        result = {instance.template.name for instance in log.instances}
        return {item for item in result if "_scaled_dot_product_" in item}

    # As a GPU's dispatcher calls them, with data and without.
    assert names("EFFICIENT_ATTENTION") == {"aten._scaled_dot_product_efficient_attention"}
    assert names("CUDNN_ATTENTION") == {"aten._scaled_dot_product_cudnn_attention"}
    efficient, cudnn, again = took("EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
    assert efficient == again > cudnn
    assert took("CUDNN_ATTENTION", "EFFICIENT_ATTENTION") == [cudnn, efficient]
    assert took("MATH") == []


REFUSED = """
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

q = torch.zeros(2, 4, 32, 64).half().cuda()
few = q[:, :2]
ones = torch.ones(32, 32, dtype=torch.bool).cuda()
flash, cudnn = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
for kind, call, why in (
    (flash, lambda: attend(q, q, q, attn_mask=ones), "flash attention: it takes no attn_mask"),
    (flash, lambda: attend(*3 * [q.float()]), "float16 and bfloat16, not torch.float32"),
    (flash, lambda: attend(*3 * [q.repeat(1, 1, 1, 5)]), "256 elements at most, not 320"),
    (flash, lambda: attend(q, few, few), "numbers of heads differ"),
    (flash, lambda: attend(q[:, :, :8], q, q, is_causal=True), "other lengths of keys"),
    (cudnn, lambda: attend(q, q[:, :, :1], q[:, :, :1]), "a single key"),
):
    with sdpa_kernel(kind), pytest.raises(RuntimeError, match="No available kernel") as raised:
        call()
    assert why in str(raised.value), raised.value
with sdpa_kernel(flash):
    attend(q, few, few, enable_gqa=True)
for given, why in (
    ((q, q.float(), q), "same dtype"),
    ((q, q.cpu(), q), "same device"),
    ((q, q, q, ones.int()), "attn_mask dtype"),
    ((q, few, few), "must match the size of tensor b"),
):
    with pytest.raises(RuntimeError, match=why):
        attend(*given)
"""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_what_no_kernel_takes_is_refused_as_on_a_gpu(tmp_path: Path, data: bool) -> None:
    program = tmp_path / "refused.py"
    program.write_text(REFUSED)
    simulated(program, machine="a100-sxm-80g", data=data)


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_what_no_kernel_takes_is_products_and_a_softmax(tmp_path: Path, data: bool) -> None:
    program = tmp_path / "products.py"
    program.write_text(
        "import torch\n"
        "attend = torch.nn.functional.scaled_dot_product_attention\n"
        "x = torch.rand(2, 4, 32, 64).cuda()\n"
        "for given in (x.double(), x[..., :36].half(), x.bfloat16()):\n"
        "    attend(given, given, given, attn_mask=torch.zeros(32, 32).to(given))\n"
    )

    def num_fused(machine: str) -> int:
        log = simulated(program, machine=machine, data=data).op_log
        names = [instance.template.name for instance in log.instances for _ in instance.starts_ps]
        return sum("_scaled_dot_product_" in name for name in names)

    # Neither takes float64 or heads of 36; V100 takes no bfloat16.
    assert (num_fused("a100-sxm-80g"), num_fused("v100")) == (1, 0)


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_causal_biases_work_where_python_is_counted(tmp_path: Path, data: bool) -> None:
    program = tmp_path / "bias.py"
    program.write_text(
        "import torch\n"
        "from torch.nn.attention.bias import causal_lower_right\n"
        "q, k = torch.zeros(2, 4, 8, 64).cuda(), torch.zeros(2, 4, 32, 64).cuda()\n"
        "attend = torch.nn.functional.scaled_dot_product_attention\n"
        "assert attend(q, k, k, attn_mask=causal_lower_right(8, 32)).shape == q.shape\n"
    )
    simulated(program, machine="a100-sxm-80g", data=data)


FROM_LAST = """
import torch
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

torch.manual_seed(0)
dtype, queries, keys, heads, data = torch.DTYPE, QUERIES, KEYS, HEADS, DATA
host = [
    torch.randn(2, 8, queries, 64).to(dtype),
    *(torch.randn(2, heads, keys, 64).to(dtype) for _ in range(2)),
]
there = [each.cuda().requires_grad_() for each in host]
attend = F.scaled_dot_product_attention
if COMPILED:
    attend = torch.compile(lambda *given, **named: F.scaled_dot_product_attention(*given, **named))
grouped = {"enable_gqa": True} if heads < 8 else {}
made = attend(*there, causal_lower_right(queries, keys), **grouped)
made.sum().backward()
if data:
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    plain = [each.float().requires_grad_() for each in host]
    expected = F.scaled_dot_product_attention(*plain, attn_mask=seen, **grouped)
    expected.sum().backward()
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {}
    torch.testing.assert_close(made.detach().cpu().float(), expected.detach(), **near)
    for mine, its in zip(there, plain):
        torch.testing.assert_close(mine.grad.cpu().float(), its.grad, **near)
"""


def from_last(folder: Path, machine: str, *, data: bool = False, **asked: Any) -> dict[str, int]:
    """Return the FLOPs of each operation of attention, by name."""
    argument = {"DTYPE": "bfloat16", "QUERIES": 128, "KEYS": 1024, "HEADS": 8, "COMPILED": False}
    source = FROM_LAST
    for name, value in ({"DATA": data} | argument | asked).items():
        source = source.replace(name, str(value))
    program = folder / "from_last.py"
    program.write_text(source)
    log = simulated(program, machine=machine, data=data).op_log
    templates = [instance.template for instance in log.instances]
    return {template.name: template.flops for template in templates if "attention" in template.name}


@pytest.mark.adr("0220-D1")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("machine", ["a100-sxm-80g", "h100-sxm"])
def test_a_causal_bias_of_the_last_key_is_flash_attentions_own(
    machine: str, compiled: bool, tmp_path: Path
) -> None:
    result = from_last(tmp_path, machine, COMPILED=compiled)
    assert result.keys() == {FLASH, f"{FLASH}_backward"}
    # The queries are the last 128 of 1024: nearly all keys are seen.
    of_all = 4 * 2 * 8 * 128 * 1024 * 64
    assert 0.9 * of_all < result[FLASH] <= of_all


@pytest.mark.parametrize(
    ("machine", "asked", "kind", "compiled"),
    [
        of_campaigns("a100-sxm-80g", {"DTYPE": "float32"}, "efficient", False),
        ("a100-sxm-80g", {"DTYPE": "float32"}, "efficient", True),
        ("a100-sxm-80g", {"HEADS": 2}, "flash", False),
        of_campaigns("a100-sxm-80g", {"HEADS": 2}, "flash", True),
        of_campaigns("v100", {"DTYPE": "float16"}, "flash", False),
        of_campaigns("v100", {"DTYPE": "float16"}, "flash", True),
        of_campaigns("ahbm", {}, "flash", False),
        of_campaigns("ahbm", {}, "flash", True),
        ("ahbm", {"QUERIES": 96, "KEYS": 160, "HEADS": 2}, "flash", False),
        of_campaigns("ahbm", {"QUERIES": 96, "KEYS": 160, "HEADS": 2}, "flash", True),
    ],
)
def test_a_causal_bias_of_the_last_key_masks_what_its_matrix_masks(
    machine: str, asked: dict[str, Any], kind: str, compiled: bool, tmp_path: Path
) -> None:
    result = from_last(tmp_path, machine, data=True, COMPILED=compiled, **asked)
    assert f"aten._scaled_dot_product_{kind}_attention" in result


def test_a_causal_bias_is_written_out_where_no_kernel_takes_it(tmp_path: Path) -> None:
    # Products are of 64-bit floats, which neither kernel takes.
    assert not from_last(tmp_path, "a100-sxm-80g", data=True, DTYPE="float64")
