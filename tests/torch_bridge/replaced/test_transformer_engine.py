"""Transformer Engine's extension module: what its kernels compute, and what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from tests.torch_bridge.running import simulated


@pytest.mark.adr("0288-D1")
@pytest.mark.adr("0288-D2")
def test_kernels_of_the_extension_compute_pytorchs_definitions() -> None:
    context = simulated("transformer_engine_kernels.py", machine="h100-sxm:1")
    names = {instance.template.name for instance in context.run.op_log.instances}
    own = {name.removeprefix("transformer_engine.") for name in names if "transformer_" in name}
    assert {"gemm", "grouped_gemm", "rmsnorm_bwd", "swiglu", "fused_attn_bwd"} < own
    assert "multi_tensor_l2norm" in own


@pytest.mark.adr("0288-D3")
def test_a_function_of_the_extension_without_a_definition_says_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import transformer_engine_torch as tex\ntex.newton_schulz(1, 2)\n")
    with pytest.raises(UnsupportedTorchError, match="newton_schulz: kernbench has no definition"):
        simulated(program)
    program.write_text("import transformer_engine_torch as tex\nprint(tex.nothing)\n")
    with pytest.raises(AttributeError, match="nothing"):
        simulated(program)
