"""Models with experts, whose rows and experts a Triton kernel reads from memory."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


@pytest.mark.parametrize("kind", ["mixtral", "deepseek"])
def test_experts_by_one_kernel_choose_the_tokens_of_the_host(kind: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    context = simulated("expert_models.py", kind, said)
    same, different = said.read_text().split()
    assert same == "True"
    # A model that always says the same would show nothing.
    assert int(different) > 1
    launches = [e for e in context.op_log.instances if e.template.name == "experts_kernel"]
    # Two products for each of three tokens.
    assert len(launches) == 6
