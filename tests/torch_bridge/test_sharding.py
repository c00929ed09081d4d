"""DTensor's rules for lists of tensors are worked out once for all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: E402

from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
meshes = [init_device_mesh("cuda", (2,)) for _ in range(2)]
whole = [torch.arange(8.0).reshape(4, 2) + each for each in range(3)]
for placement in (Shard(0), Shard(1), Replicate()):
    given = [
        distribute_tensor(each.cuda(), meshes[number > 0], [placement])
        for number, each in enumerate(whole)
    ]
    made = torch._foreach_mul(given, 2.0)
    torch._foreach_add_(made, given)
    for tensor, expected in zip(made, whole):
        assert any(tensor.device_mesh is each for each in meshes)
        assert tensor.placements == (placement,)
        assert torch.equal(tensor.full_tensor().cpu(), expected * 3)
"""


@pytest.mark.adr("0066-D3")
def test_a_rule_is_found_once_and_each_rank_has_its_own_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def counted(self: Any, schema: Any) -> Any:
        seen.append(str(schema.op))
        return original(self, schema)

    monkeypatch.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", counted)
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    simulated(path, nprocs=2)
    foreach = [name for name in seen if "foreach" in name]
    # Two operations on three layouts, by two ranks.
    assert len(foreach) == 6
