import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import KernbenchError
from kernbench.tp.sharding import TransformerConfig, extract


def config(**changes):
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "num_kv_heads": 4,
        "vocab_size": 32000,
        "num_layers": 24,
        "tp_size": 2,
    }
    return TransformerConfig(**(sizes | changes))


def test_a_350m_model_on_two_ranks_has_half_of_everything():
    tp = config()
    assert tp.head_dim == 1024 // 16
    assert (tp.local_num_heads, tp.local_num_kv_heads) == (8, 2)
    assert (tp.local_q_size, tp.local_kv_size) == (8 * 64, 2 * 64)
    assert tp.local_qkv_size == 8 * 64 + 2 * (2 * 64)
    assert (tp.local_intermediate_size, tp.local_vocab_size) == (2048, 16000)


def test_four_ranks_of_four_kv_heads_have_one_each():
    tp = config(tp_size=4)
    assert (tp.local_num_heads, tp.local_num_kv_heads, tp.kv_replicas) == (4, 1, 1)


@pytest.mark.adr("0015-D2")
def test_eight_ranks_of_four_kv_heads_hold_each_twice():
    tp = config(tp_size=8)
    assert (tp.local_num_heads, tp.local_num_kv_heads, tp.kv_replicas) == (2, 1, 2)


@pytest.mark.adr("0015-D2")
@settings(deadline=None)
@given(
    st.integers(0, 4).map(lambda power: 2**power),
    st.integers(0, 5).map(lambda power: 2**power),
    st.integers(1, 3),
)
def test_a_rank_holds_the_kv_heads_of_all_its_query_heads(num_kv_heads, tp_size, per_kv):
    num_heads = max(num_kv_heads, tp_size) * per_kv
    tp = config(
        hidden_size=2 * num_heads,
        head_dim=2,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        tp_size=tp_size,
        intermediate_size=32,
        vocab_size=32,
    )
    q_part, k_part, _ = tp.layer_weights["attention.qkv"].parts
    for rank in range(tp_size):
        q_block, k_block = q_part.block(tp_size, rank), k_part.block(tp_size, rank)
        heads = range(q_block.start // 2, q_block.stop // 2)
        needed = {head // (num_heads // num_kv_heads) for head in heads}
        assert needed <= set(range(k_block.start // 2, k_block.stop // 2))


def test_bytes_per_rank_are_those_of_the_shards():
    tp = config(tp_size=8, num_layers=3, bias=True, dtype="f16")
    shards = [
        extract(np.zeros(spec.shape, np.float16), spec, 5)
        for weights, count in ((tp.layer_weights, 3), (tp.outer_weights, 1))
        for spec in weights.values()
        for _ in range(count)
    ]
    assert tp.bytes_per_rank == sum(shard.nbytes for shard in shards)


def test_one_rank_holds_the_parameters_of_the_model():
    tp = config(tp_size=1, num_kv_heads=None, gated=False, tied_embeddings=True)
    block = (4 + 2 * 4) * 1024**2 + 2 * 1024
    assert tp.parameters_per_rank == 24 * block + (32000 + 1) * 1024


def test_a_gate_is_fused_with_the_up_projection():
    assert config().layer_weights["mlp.gate_up"].shape == (1024, 2 * 4096)
    assert config(gated=False).layer_weights["mlp.up"].shape == (1024, 4096)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp_size": 3}, r"num_kv_heads \(4\).*tensor parallel size \(3\)"),
        ({"tp_size": 3, "num_kv_heads": None}, r"num_heads \(16\).*|num_kv_heads \(16\).*\(3\)"),
        ({"tp_size": 6}, r"num_kv_heads \(4\).*\(6\)"),
        ({"num_heads": 8, "tp_size": 16, "num_kv_heads": 2}, r"num_heads \(8\).*\(16\)"),
        ({"num_kv_heads": 5}, r"num_heads \(16\).*num_kv_heads \(5\)"),
        ({"num_heads": 12}, r"hidden_size \(1024\).*num_heads \(12\)"),
        ({"intermediate_size": 4095}, r"intermediate_size \(4095\).*\(2\)"),
        ({"vocab_size": 50257}, r"vocab_size \(50257\).*\(2\)"),
        ({"tp_size": 0}, "tensor parallel size .*at least 1, but got 0"),
        ({"num_layers": 0}, "num_layers .*got 0"),
        ({"head_dim": -64}, "head_dim .*got -64"),
        ({"dtype": "f17"}, "unknown dtype 'f17'"),
    ],
)
def test_sizes_that_do_not_split_are_refused_with_both_numbers(changes, message):
    with pytest.raises((ValueError, LookupError), match=message) as caught:
        config(**changes)
    assert isinstance(caught.value, KernbenchError)
