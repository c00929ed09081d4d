"""Context parallel attention: the ring gives what attention over the whole sequence gives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = "context_parallel.py"


@pytest.mark.slow
@pytest.mark.adr("0077-D4")
@pytest.mark.parametrize("method", ["allgather", "alltoall"])
def test_attention_of_shards_is_that_of_the_whole_sequence(method: str) -> None:
    context = simulated(PROGRAM, method, nprocs=2)
    names = {instance.template.name for instance in context.op_log.instances}
    assert "aten._scaled_dot_product_flash_attention" in names
    assert {"all_to_all", "all_gather"} <= names


@pytest.mark.slow
@pytest.mark.adr("0077-D4")
def test_the_ring_runs_without_data() -> None:
    with_data, without = (
        # Of float32 outside of the ring it is CUDA's other kernel without data.
        [
            (instance.template.name.replace("efficient", "flash"), instance.ranks)
            for instance in run.op_log.instances
        ]
        for run in (simulated(PROGRAM, "alltoall", nprocs=2, data=data) for data in (True, False))
    )
    flash = "aten._scaled_dot_product_flash_attention_backward"
    assert [item for item in without if item[0] == flash] == [
        item for item in with_data if item[0] == flash
    ]
