"""Attention is a GPU's operation, eager and compiled, with data and without (ADR-0220)."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.hardware import load_machine  # noqa: E402
from kernbench.torch_bridge.compiler import traced  # noqa: E402
from kernbench.torch_bridge.costs.attention import (  # noqa: E402
    MATH,
    AttentionCall,
    chosen_kind,
)
from tests.tiers import of_campaigns  # noqa: E402
from tests.torch_bridge.compiler.test_compiler import run_compiled  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

FLASH = "aten._scaled_dot_product_flash_attention"
EFFICIENT = "aten._scaled_dot_product_efficient_attention"
PROGRAM = "attention.py"


def launched(*args: Any, data: bool = True, machine: str = "a100-sxm-80g") -> list[tuple[str, int]]:
    """Return the names and times of operations of attention that an eager run launches."""
    log = simulated(PROGRAM, args[0], "eager", *args[1:], machine=machine, data=data).op_log
    return [
        (instance.template.name, instance.template.duration_ps)
        for instance in log.instances
        for _ in instance.starts_ps
        if "scaled_dot_product" in instance.template.name
    ]


def compiled(tmp_path: Path, *args: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return kernels by name that the report of a compiled run names."""
    report = tmp_path / "report.json"
    options = ("--json", str(report), *options)
    done = run_compiled(
        tmp_path, PROGRAM, *options, machine="a100-sxm-80g", args=[args[0], "compiled", *args[1:]]
    )
    assert done.returncode == 0, done.stderr
    return {item["name"]: item for item in json.loads(report.read_text())["kernels"]}


@pytest.mark.adr("0220-D2")
@pytest.mark.slow
@pytest.mark.parametrize("machine", [of_campaigns("ahbm"), "a100-sxm-80g"])
def test_numbers_and_gradients_are_the_hosts(machine: str) -> None:
    simulated(PROGRAM, "numbers", "eager", machine=machine)


@pytest.mark.adr("0220-D1")
def test_operands_and_masks_are_cast_before_they_are_looked_at() -> None:
    names = [name for name, _ in launched("autocast")]
    assert (names[0], names.count(EFFICIENT)) == (FLASH, 3)


@pytest.mark.adr("0220-D1")
@pytest.mark.filterwarnings("ignore")
def test_attention_inside_transforms_traces_and_ragged_tensors_is_the_hosts() -> None:
    launched("elsewhere")


@pytest.mark.campaign
@pytest.mark.adr("0220-D3")
@pytest.mark.slow
def test_compiled_operands_and_masks_are_cast_alike(tmp_path: Path) -> None:
    kernels = compiled(tmp_path, "autocast")
    assert {FLASH, EFFICIENT} <= set(kernels)


@pytest.mark.adr("0220-D2")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_is_of_the_programs_seed_forward_and_backward(dtype: str) -> None:
    names = [name for name, _ in launched("dropout", dtype)]
    assert set(names) == (
        {FLASH, f"{FLASH}_backward"}
        if dtype == "bfloat16"
        else {EFFICIENT, f"{EFFICIENT}_backward"}
    )


@pytest.mark.adr("0220-D1")
@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_policies_and_counts_meet_the_operation_of_a_gpu(data: bool) -> None:
    names = [name for name, _ in launched("policies", data=data)]
    assert names == [FLASH, f"{FLASH}_backward"]
    launched("flops", data=data)


@pytest.mark.adr("0220-D1")
@pytest.mark.parametrize("masked", [False, True])
def test_attention_takes_as_long_with_data_as_without(masked: bool) -> None:
    with_data = launched("steps", masked)
    assert with_data == launched("steps", masked, data=False)
    kind = EFFICIENT if masked else FLASH
    assert [name for name, _ in with_data] == [kind, f"{kind}_backward"]


@pytest.mark.campaign
@pytest.mark.adr("0220-D3")
@pytest.mark.slow
@pytest.mark.parametrize("case", ["dropout", "policies", "steps", "written_out"])
def test_compiled_graphs_have_the_same_operations(tmp_path: Path, case: str) -> None:
    args = {"steps": ("False",), "dropout": ("bfloat16",)}.get(case, ())
    kernels = compiled(tmp_path, case, *args)
    assert {FLASH, f"{FLASH}_backward"} <= set(kernels)
    if case != "dropout":
        assert kernels[FLASH]["launches"] == kernels[f"{FLASH}_backward"]["launches"] == 1
    assert not {name for name in kernels if "bmm" in name or "softmax" in name}


@pytest.mark.campaign
@pytest.mark.adr("0220-D3")
@pytest.mark.slow
def test_compiled_numbers_are_the_hosts(tmp_path: Path) -> None:
    kernels = compiled(tmp_path, "numbers")
    assert {FLASH, EFFICIENT} <= set(kernels)


@pytest.mark.adr("0220-D3")
@pytest.mark.parametrize("machine", ["ahbm", "v100", "a100-sxm-80g", "h100-sxm", "rtx-4090"])
def test_the_compiler_follows_the_rules_of_eager_mode(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability = load_machine(machine, 1).spec.cuda_architecture
    monkeypatch.setattr(traced, "_capability", lambda: capability or 0)
    sizes = product((32, 36, 100, 256, 320), (32, 256), (1, 16), (1, 16), (2, 4), (False, True))
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    num_fused = 0
    for dtype, (width, wide, queries, keys, heads, causal) in product(dtypes, sizes):
        for masked, grouped in product((False, True), repeat=2):
            if masked and causal:
                continue
            q = torch.empty(2, 4, queries, width, dtype=dtype, device="meta")
            k = torch.empty(2, heads, keys, width, dtype=dtype, device="meta")
            v = torch.empty(2, heads, keys, wide, dtype=dtype, device="meta")
            mask = torch.empty(queries, keys, dtype=dtype, device="meta") if masked else None
            call = AttentionCall(
                query=tuple(q.shape), key=tuple(k.shape), value=tuple(v.shape), dtype=dtype,
                masked=masked, causal=causal, grouped=grouped, differentiated=False, dropout=0.0,
                rows_are_dense=True,
            )  # fmt: skip
            fused = traced._are_heads(q, k, v, grouped) and traced._any_takes(
                q, k, v, mask, causal, traced._allowed()
            )
            assert fused == (chosen_kind(call, capability) != MATH), call
            num_fused += fused
    assert num_fused > 100
