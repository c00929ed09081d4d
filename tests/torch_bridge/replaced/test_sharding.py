"""DTensor's rules are computed once for all ranks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding  # noqa: E402
from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: E402

from kernbench.torch_bridge.replaced.sharding import SharedRules  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def asked_by(monkeypatch: pytest.MonkeyPatch, case: str, nprocs: int) -> Counter[str]:
    """Run a case and return which operations PyTorch has computed, how often."""
    seen = Counter[str]()
    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def counted(self: Any, schema: Any) -> Any:
        seen[str(schema.op)] += 1
        return original(self, schema)

    monkeypatch.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", counted)
    simulated("sharding.py", case, nprocs=nprocs)
    return seen


@pytest.mark.adr("0098-D13")
def test_a_rule_is_found_once_and_each_rank_has_its_own_mesh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asked_by(monkeypatch, "lists", 2)
    # Two operations on three layouts, by two ranks.
    assert sum(count for name, count in asked.items() if "foreach" in name) == 6


@pytest.mark.adr("0098-D13")
def test_each_rank_takes_the_time_of_rules_that_one_has_found() -> None:
    log = simulated("sharding.py", "lists", nprocs=2, machine="a100-sxm-80g").op_log
    called_ps = Counter[int]()
    for span in log.host_spans:
        if span.kind == "python":
            called_ps[span.rank] += span.end_ps - span.start_ps
    # Both find 12 rules, of hundreds of calls each; whoever came first does a little more once.
    assert called_ps[0] == pytest.approx(called_ps[1], rel=0.1)
    assert min(called_ps.values()) > 20 * 10**9


@pytest.mark.adr("0098-D13")
def test_each_rank_takes_the_time_of_views_in_rules_that_one_has_found() -> None:
    log = simulated("sharding.py", "other_operations", nprocs=4, machine="a100-sxm-80g").op_log
    taken_ps = Counter[int]()
    for span in log.host_spans:
        if span.kind in ("launch", "dispatch"):
            taken_ps[span.rank] += span.end_ps - span.start_ps
    assert len(set(taken_ps.values())) == 1


def test_ranks_of_different_meshes_have_one_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_by(monkeypatch, "other_operations", 4)
    assert asked["aten._softmax.default"] == asked["aten.view.default"] == 3
    assert asked["aten.mm.default"] == asked["aten.t.default"] == 3


def test_ranks_with_unequal_shards_ask_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_by(monkeypatch, "unequal_shards", 2)["aten.view.default"] == 2


def test_a_rule_that_is_registered_anew_is_asked_again() -> None:
    op = torch.ops.aten.erf.default
    result: list[OutputSharding] = []

    def work_out(_: Any) -> OutputSharding:
        result.append(OutputSharding(None))
        return result[-1]

    propagator = SimpleNamespace(
        propagate_op_sharding_non_cached=work_out,
        op_single_dim_strategy_funcs={},
        op_strategy_funcs={op: object()},
        op_to_rules={},
    )
    rules, schema = SharedRules(propagator), OpSchema(op, (), {})
    for _ in range(3):
        rules(schema)
    assert len(result) == 1
    propagator.op_strategy_funcs[op] = object()
    rules(schema)
    assert len(result) == 2


@pytest.mark.campaign
@pytest.mark.slow
def test_attention_is_sharded_by_batch_and_heads() -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    before = set(propagator.op_strategy_funcs)
    simulated("sharding.py", "attention_of_heads", nprocs=4)
    assert set(propagator.op_strategy_funcs) == before
