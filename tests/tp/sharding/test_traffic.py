from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench import tp
from kernbench.errors import KernbenchError
from kernbench.runtime_api import RuntimeContext
from kernbench.tp.sharding import (
    CollectiveUse,
    TransformerConfig,
    collectives_per_step,
    time_collectives,
    total_step_bytes,
)


def config(**changes):
    sizes: dict[str, Any] = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "num_kv_heads": 4,
        "vocab_size": 32000,
        "num_layers": 24,
        "tp_size": 4,
        "dtype": "f32",
    }
    return TransformerConfig(**(sizes | changes))


def named(uses, what):
    (result,) = [use for use in uses if use.what == what]
    return result


def test_a_block_has_two_all_reduces_forward_and_two_backward():
    uses = collectives_per_step(config(), tokens=1024)
    forward = named(uses, "outputs of attention and MLP")
    backward = named(uses, "input gradients of attention and MLP")
    for use in (forward, backward):
        assert (use.op, use.count) == ("all_reduce", 2 * 24)
        assert use.message_bytes == 1024 * 1024 * 4
        assert use.step_bytes == 192 * 2**20


@settings(deadline=None)
@given(
    tp_size=st.sampled_from((2, 4)),
    tokens=st.integers(1, 64).map(lambda count: 4 * count),
    num_layers=st.integers(1, 4),
)
def test_sequence_parallelism_sends_as_much_forward_as_all_reduces_do(tp_size, tokens, num_layers):
    sizes = {"tp_size": tp_size, "num_layers": num_layers}
    plain, split = (
        collectives_per_step(config(**sizes, sequence_parallel=flag), tokens, training=False)
        for flag in (False, True)
    )
    # The embedding's all_gather is the one before the first block; the last one feeds the output.
    assert sum(use.wire_bytes for use in plain) == sum(use.wire_bytes for use in split)


def test_inference_has_only_the_forward_collectives():
    uses = collectives_per_step(config(), 8)
    forward = collectives_per_step(config(), 8, training=False)
    assert forward == tuple(use for use in uses if use.phase == "forward")
    assert 0 < total_step_bytes(forward) < total_step_bytes(uses)


def test_one_rank_communicates_nothing():
    assert collectives_per_step(config(tp_size=1), tokens=8) == ()


def test_replicated_kv_heads_sum_their_weight_gradients_over_their_replicas():
    use = named(
        collectives_per_step(config(tp_size=16, bias=True), 16), "gradients of replicated KV heads"
    )
    assert (use.num_ranks, use.count) == (16 // 4, 24)
    assert use.num_elements == (1024 + 1) * 2 * 64


def test_tokens_that_do_not_split_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"tokens \(10\).*\(4\)") as caught:
        collectives_per_step(config(sequence_parallel=True), tokens=10)
    assert isinstance(caught.value, KernbenchError)
    with pytest.raises(ValueError, match="tokens must be at least 1, but got 0"):
        collectives_per_step(config(), tokens=0)


def run_transformer(torch, model, tokens):
    """One training step of the layers themselves; attention is a slice, which sends nothing."""
    shared = {"sequence_parallel": model.sequence_parallel, "dtype": model.dtype, "torch": torch}
    embedding = tp.VocabParallelEmbedding(model.vocab_size, model.hidden_size, **shared)
    output = tp.ColumnParallelLinear(model.hidden_size, model.vocab_size, **shared)
    loss_of = tp.VocabParallelCrossEntropy(torch)
    blocks: list[Any] = []
    for _ in range(model.num_layers):
        for wide in (model.num_heads * model.head_dim, model.intermediate_size):
            blocks.append(tp.ColumnParallelLinear(model.hidden_size, wide, **shared))
            blocks.append(tp.RowParallelLinear(wide, model.hidden_size, **shared))
    ids = torch.zeros((tokens,), dtype="i64")
    x = embedding(ids)
    for layer in blocks:
        x = layer(x)
    loss = loss_of(output(x), ids)
    grad = output.backward(loss_of.backward(loss))
    for layer in reversed(blocks):
        grad = layer.backward(grad)
    embedding.backward(grad)


def totals(rows):
    """Sum (count, bytes) by op."""
    result: dict[Any, Any] = {}
    for op, count, size in rows:
        before = result.get(op, (0, 0))
        result[op] = (before[0] + count, before[1] + size)
    return result


@pytest.mark.adr("0015-D4")
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp_size", [2, 4])
def test_the_layers_make_exactly_the_collectives_of_the_plan(tp_size, sequence_parallel):
    tokens = 16
    model = config(
        hidden_size=32,
        intermediate_size=64,
        num_heads=4,
        vocab_size=64,
        num_layers=3,
        tp_size=tp_size,
        sequence_parallel=sequence_parallel,
        dtype="f16",
    )
    with RuntimeContext(machine="ahbm", ranks=tp_size, data=False) as torch:

        def worker(rank):
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group()
            tp.initialize_model_parallel()
            run_transformer(torch, model, tokens)

        torch.multiprocessing.spawn(worker, nprocs=tp_size)
        report = torch.report()
    result = totals((row["op"], row["count"], row["bytes"]) for row in report["collectives"])
    # Norms are not among the layers of tp: whoever has them sums their gradients.
    plan = [use for use in collectives_per_step(model, tokens) if "norms" not in use.what]
    assert result == totals((use.op, use.count, use.step_bytes) for use in plan)


@pytest.mark.adr("0015-D4")
def test_times_are_those_of_the_same_collectives_in_a_run():
    elements = 4 * 3 * 1000
    use = CollectiveUse("forward", "test", "all_reduce", 7, elements, "f16", num_ranks=4)
    (timed,) = time_collectives([use], machine="ahbm")
    with RuntimeContext(machine="ahbm", ranks=4) as torch:

        def worker(rank):
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group()
            torch.distributed.all_reduce(torch.ones((elements,), dtype="f16"))

        torch.multiprocessing.spawn(worker, nprocs=4)
        (row,) = torch.report()["collectives"]
    assert timed.each_ns == row["time_ns"]
    assert (timed.algorithm, timed.use.message_bytes) == (row["algorithm"], row["bytes"])
    assert timed.step_ns == 7 * timed.each_ns


def test_a_plan_of_a_step_is_timed_with_its_groups():
    uses = collectives_per_step(config(tp_size=8, num_layers=2, sequence_parallel=True), 64)
    timed = time_collectives(uses)
    assert [item.use for item in timed] == list(uses)
    assert all(item.each_ns > 0 and item.algbw_gbps > 0 for item in timed)
    by_op = {item.use.op: item for item in timed if item.use.num_elements == 64 * 1024}
    # An all_gather and a reduce_scatter of a message are the two halves of its all_reduce.
    assert set(by_op) == {"all_gather", "reduce_scatter"}


def test_timing_what_does_not_fit_is_refused():
    use = CollectiveUse("forward", "test", "all_gather", 1, 10, "f16", num_ranks=4)
    with pytest.raises(ValueError, match=r"10 elements.*4 ranks"):
        time_collectives([use])
    use = CollectiveUse("forward", "test", "all_reduce", 1, 10, "f16", num_ranks=4)
    with pytest.raises(KernbenchError, match="4"):
        time_collectives([use], machine="ahbm:2")
