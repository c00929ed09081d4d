"""Stand-ins for packages that no CPU machine can build: what they compute, how long it takes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from kernbench.errors import UsageError
from tests.tiers import of_campaigns
from tests.torch_bridge.running import simulated

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(
        importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is installed"
    ),
]
_SAID = (
    "stand-ins of kernbench's ran for packages that are not installed, computed by definition and "
    "timed as their kernels: flash_attn"
)


@pytest.mark.adr("0148-D1")
@pytest.mark.adr("0148-D2")
@pytest.mark.adr("0148-D4")
@pytest.mark.parametrize("machine", [of_campaigns("ahbm:1"), "a100-sxm-80g:1"])
def test_attention_of_a_stand_in_is_pytorchs(machine: str, tmp_path: Path) -> None:
    context = simulated("flash_attention.py", tmp_path / "times", machine=machine)
    short, long = torch.load(tmp_path / "times")
    # A graph's replay reads the lengths again.
    assert long > 1.5 * short
    assert _SAID in [line for remark in context.run.remarks for line in remark()]
    assert "flash_attn" not in sys.modules
    names = {instance.template.name for instance in context.run.op_log.instances}
    # One kernel each, forward and backward.
    assert {"flash_attn.layer_norm", "flash_attn.layer_norm_backward"} < names
    assert {f"flash_attn._flash_attn_{kind}" for kind in ("forward", "varlen_forward")} < names


def test_a_stand_in_that_is_only_looked_for_has_not_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import flash_attn, torch\ntorch.ones(2, device='cuda').sum()\n")
    context = simulated(program)
    assert _SAID not in [line for remark in context.run.remarks for line in remark()]


def test_ring_attention_has_the_gradients_of_all_keys() -> None:
    simulated("ring_attention.py", machine="a100-sxm-80g:1")


@pytest.mark.adr("0148-D3")
def test_time_of_attention_is_that_of_its_sequences(tmp_path: Path) -> None:
    simulated("flash_attention_times.py", tmp_path / "f", machine="a100-sxm-80g:1", data=False)
    tensor: dict[str, Any] = torch.load(tmp_path / "f")
    equal, one, several = (tensor[str(length)] for length in _LENGTHS)
    squares = [sum(length**2 for length in item) for item in _LENGTHS]
    # Products decide: 8 heads of size 64, two products.
    least_ms = [2 * 2 * 8 * 64 * square / 312e12 * 1e3 for square in squares]
    for time, least in zip((equal, one, several), least_ms, strict=True):
        assert least < time < 1.7 * least
    assert tensor["dense"] == tensor["unknown"] == equal
    # Bytes decide: keys and values of 8 heads of 128 for 16 sequences.
    for length in (1024, 4096):
        least = 2 * 16 * length * 8 * 128 * 2 / 2.039e12 * 1e3
        # A launch, and the time stamps around it.
        assert least < tensor[f"cache of {length}"] < 1.5 * least + 0.015 + 0.004


_LENGTHS = ([4096] * 4, [16384], [8192, 4096, 2048, 2048])


def test_stand_ins_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    for package, others in (("flash_attn", "none"), ("transformer_engine_torch", "flash_attn")):
        program.write_text(f"import {package}\n")
        monkeypatch.setenv("KERNBENCH_STAND_INS", others)
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{package}'"):
            simulated(program, machine="ahbm:1")
    monkeypatch.setenv("KERNBENCH_STAND_INS", "flash_atn")
    with pytest.raises(UsageError, match="no stand-in for flash_atn; did you mean flash_attn"):
        simulated(program, machine="ahbm:1")


@pytest.mark.adr("0148-D1")
def test_installed_package_is_used(tmp_path: Path) -> None:
    (tmp_path / "flash_attn.py").write_text("flash_attn_func = 'installed'\n")
    program = tmp_path / "program.py"
    program.write_text("import flash_attn\nassert flash_attn.flash_attn_func == 'installed'\n")
    context = simulated(program, machine="ahbm:1")
    assert not any("stand-in" in line for remark in context.run.remarks for line in remark())


def test_nothing_is_said_where_nothing_is_stood_in_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\ntorch.ones(2, device='cuda')\n")
    context = simulated(program, machine="ahbm:1")
    assert not any("stand-in" in line for remark in context.run.remarks for line in remark())


@pytest.mark.adr("0305-D1")
@pytest.mark.adr("0305-D2")
def test_attention_of_flashinfers_stand_in_is_plain_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that is installed would compile its kernels.
    (tmp_path / "flashinfer.py").write_text("raise AssertionError('the installed one')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KERNBENCH_STAND_INS", "flashinfer")
    context = simulated("flashinfer_attention.py", machine="b200:1")
    said = [line for remark in context.run.remarks for line in remark()]
    assert any("timed as kernels: flashinfer.attend_pages" in line for line in said)
    program = tmp_path / "program.py"
    program.write_text("import flashinfer\n")
    with pytest.raises(AssertionError, match="the installed one"):
        simulated(program, machine="h100-sxm:1")
    monkeypatch.delenv("KERNBENCH_STAND_INS")
    with pytest.raises(AssertionError, match="the installed one"):
        simulated(program, machine="b200:1")


def test_time_of_flashinfers_attention_is_that_of_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_STAND_INS", "flashinfer")
    simulated("flashinfer_attention.py", tmp_path / "f", machine="b200:1", data=False)
    (wide_ms, wide_bytes), (narrow_ms, narrow_bytes) = torch.load(tmp_path / "f")
    launch_ms = 0.01
    for time, size in ((wide_ms, wide_bytes), (narrow_ms, narrow_bytes)):
        least = size / 8e12 * 1e3
        assert least < time < 1.5 * least + launch_ms
    assert narrow_ms < 0.75 * wide_ms
