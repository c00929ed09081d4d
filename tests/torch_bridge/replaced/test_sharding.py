"""DTensor's rules are computed once for all ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding  # noqa: E402
from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: E402

from kernbench.torch_bridge.replaced.sharding import SharedRules  # noqa: E402
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


def asked_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, nprocs: int
) -> Counter[str]:
    """Run a program and return which operations PyTorch has computed, how often."""
    seen = Counter[str]()
    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def counted(self: Any, schema: Any) -> Any:
        seen[str(schema.op)] += 1
        return original(self, schema)

    monkeypatch.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", counted)
    path = folder / "program.py"
    path.write_text(program)
    simulated(path, nprocs=nprocs)
    return seen


@pytest.mark.adr("0066-D3")
def test_a_rule_is_found_once_and_each_rank_has_its_own_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_by(tmp_path, monkeypatch, PROGRAM, 2)
    # Two operations on three layouts, by two ranks.
    assert sum(count for name, count in asked.items() if "foreach" in name) == 6


EACH_OPERATION = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
whole = torch.arange(48.0).reshape(6, 8)
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
for placement in (Shard(0), Shard(1), Replicate()):
    given = distribute_tensor(whole.cuda(), mesh, [placement])
    # The first needs its operand elsewhere, the second has a shape among its arguments.
    for made, expected in (
        (torch.softmax(given, -1), torch.softmax(whole, -1)),
        (given.view(6, 2, 4), whole.view(6, 2, 4)),
        (given @ given.t(), whole @ whole.t()),
    ):
        assert made.device_mesh is mesh
        torch.testing.assert_close(made.full_tensor().cpu(), expected)
"""


@pytest.mark.adr("0083-D1")
def test_ranks_of_different_meshes_have_one_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_by(tmp_path, monkeypatch, EACH_OPERATION, 4)
    assert asked["aten._softmax.default"] == asked["aten.view.default"] == 3
    assert asked["aten.mm.default"] == asked["aten.t.default"] == 3


UNEVEN = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
mesh = init_device_mesh("cuda", (2,))
whole = torch.arange(20.0).reshape(5, 4)
given = distribute_tensor(whole.cuda(), mesh, [Shard(0)])
made = given.view(5, 2, 2)
assert made.to_local().shape == (3 - rank, 2, 2)
assert torch.equal(made.full_tensor().cpu(), whole.view(5, 2, 2))
"""


@pytest.mark.adr("0083-D1")
def test_ranks_with_unequal_shards_ask_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked_by(tmp_path, monkeypatch, UNEVEN, 2)["aten.view.default"] == 2


@pytest.mark.adr("0083-D1")
def test_a_rule_that_is_registered_anew_is_asked_again() -> None:
    op = torch.ops.aten.erf.default
    made: list[OutputSharding] = []

    def work_out(_: Any) -> OutputSharding:
        made.append(OutputSharding(None))
        return made[-1]

    propagator = SimpleNamespace(
        propagate_op_sharding_non_cached=work_out,
        op_single_dim_strategy_funcs={},
        op_strategy_funcs={op: object()},
        op_to_rules={},
    )
    rules, schema = SharedRules(propagator), OpSchema(op, (), {})
    for _ in range(3):
        rules(schema)
    assert len(made) == 1
    propagator.op_strategy_funcs[op] = object()
    rules(schema)
    assert len(made) == 2


ATTENTION = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.functional import scaled_dot_product_attention as attention

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
mesh = init_device_mesh("cuda", (2, 2))
torch.manual_seed(0)
shapes = ((4, 2, 8, 16), (4, 2, 12, 16), (4, 2, 12, 16))
host = [torch.randn(shape, requires_grad=True) for shape in shapes]
both, batch, whole = (Shard(0), Shard(1)), (Shard(0), Replicate()), (Replicate(), Replicate())
for mask, sharded, can_both in (
    (None, whole, True),
    (torch.ones(8, 12, dtype=torch.bool).tril(4), whole, True),
    (torch.randn(1, 1, 8, 12), whole, True),
    (torch.randn(4, 1, 8, 12), batch, True),
    (torch.randn(4, 1, 8, 12), whole, False),
    (torch.randn(4, 2, 8, 12), both, True),
):
    expected = attention(*host, attn_mask=mask)
    gradients = torch.autograd.grad(expected.square().sum(), host)
    for placements in (both, (Shard(1), Replicate()), whole):
        given = [distribute_tensor(each.detach().cuda(), mesh, placements) for each in host]
        given = [each.requires_grad_() for each in given]
        seen = None
        if mask is not None:
            seen = distribute_tensor(mask.cuda(), mesh, sharded)
        made = attention(*given, attn_mask=seen)
        if placements == both:
            assert (made.placements == both) == can_both, (sharded, made.placements)
        torch.testing.assert_close(made.full_tensor().cpu(), expected)
        made.square().sum().backward()
        for each, gradient in zip(given, gradients):
            torch.testing.assert_close(each.grad.full_tensor().cpu(), gradient)
"""


@pytest.mark.slow
def test_attention_is_sharded_by_batch_and_heads(tmp_path: Path) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    before = set(propagator.op_strategy_funcs)
    path = tmp_path / "program.py"
    path.write_text(ATTENTION)
    simulated(path, nprocs=4)
    assert set(propagator.op_strategy_funcs) == before
