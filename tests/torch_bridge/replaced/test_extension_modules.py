"""Extension modules that need CUDA: their operators are those of their shared objects' text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.runtime_api import RuntimeContext
from tests.cli.command_line import kernbench
from tests.torch_bridge.running import simulated
from tests.torch_bridge.shared_objects import make_engine

torch = pytest.importorskip("torch")
from kernbench.torch_bridge.replaced.extension_modules.shared_objects import (  # noqa: E402
    needs_cuda,
    operators_of,
)
from tests.tiers import examples  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
_OPERATORS = (
    "rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
    "silu_and_mul(Tensor! result, Tensor input) -> ()",
    "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, "
    "Tensor? scale_ub) -> ()",
    "cutlass_scaled_mm(Tensor! out, Tensor a,       Tensor b, Tensor a_scales, Tensor b_scales, "
    "Tensor? bias) -> ()",
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
    "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
    "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, "
    "Tensor gating_output, bool renormalize, Tensor? bias, Tensor? is_padding) -> ()",
    "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, "
    "Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad, "
    "Tensor? maybe_expert_map, Tensor(a!)? scatter_idx=None) -> ()",
    "moe_sum(Tensor input, Tensor! output, Tensor? topk_ids=None, Tensor? expert_map=None, "
    "int more=0) -> ()",
    "vocab_parallel_embedding(Tensor! out, Tensor input_ids, Tensor weight, "
    "int org_vocab_start_index, int org_vocab_end_index, int num_org_vocab_padding, "
    "int added_vocab_start_index, int added_vocab_end_index) -> ()",
    "merge_attn_states( Tensor! output, Tensor!? output_lse, Tensor prefix_output, "
    "Tensor prefix_lse, Tensor suffix_output, Tensor suffix_lse, "
    "int!? prefill_tokens_with_context, Tensor? output_scale=None) -> ()",
    "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor scale, bool skip_scale=False) -> ()",
    "gather_and_maybe_dequant_cache(Tensor src_cache, Tensor! dst, Tensor block_table, "
    "Tensor cu_seq_lens, Tensor token_to_seq, int num_tokens, str kv_cache_dtype, Tensor scale, "
    "Tensor? seq_starts) -> ()",
    "apply_repetition_penalties_(Tensor! logits, Tensor prompt_mask, Tensor output_mask, "
    "Tensor repetition_penalties) -> ()",
    "top_k_per_row_prefill(Tensor logits, Tensor rowStarts, Tensor rowEnds, Tensor! indices, "
    "int numRows, int stride0, int stride1, int topK) -> ()",
    "get_cuda_view_from_cpu_tensor(Tensor cpu_tensor) -> Tensor",
    "never_defined(Tensor input) -> Tensor",
)
_FA3 = (
    "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, "
    "Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, "
    "Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, "
    "Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
    "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, "
    "float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, "
    "bool? pack_gqa, int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, "
    "Tensor? cp_tot_seqused_k) -> Tensor[]",
    "get_scheduler_metadata( int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, "
    "int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, "
    "Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, bool is_causal, "
    "int window_size_left, int window_size_right, bool has_softcap, int num_splits, "
    "bool? pack_gqa, int sm_margin) -> Tensor",
)


_FA2 = (
    "varlen_fwd(Tensor! q, Tensor k, Tensor v, Tensor!? out, Tensor cu_seqlens_q, "
    "Tensor cu_seqlens_k, Tensor? seqused_k, Tensor? leftpad_k, Tensor? block_table, "
    "Tensor? alibi_slopes, int max_seqlen_q, int max_seqlen_k, float p_dropout, "
    "float softmax_scale, bool zero_tensors, bool is_causal, int window_size_left, "
    "int window_size_right, float softcap, bool return_softmax, int num_splits, Tensor? gen) -> "
    "Tensor[]",
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose shared objects have names, texts and needs alone: no CUDA, and no code."""
    modules = {
        "_C": ("engine_ops", _OPERATORS),
        "_fa3": ("_vllm_fa3_C", _FA3),
        "_fa2": ("_vllm_fa2_C", _FA2),
        "plain": ("", ()),
    }
    return make_engine(tmp_path_factory.mktemp("engines"), modules)


@pytest.mark.adr("0258-D1")
def test_text_of_a_shared_object_has_its_operators(engine: Path, tmp_path: Path) -> None:
    namespaces, schemas = operators_of(engine / "engine/_C.abi3.so")
    assert namespaces == ("engine_ops",)
    parsed = [torch._C.parse_schema(item) for _, item in schemas]
    assert sorted(item.name for item in parsed) == sorted(
        operator.partition("(")[0] for operator in _OPERATORS
    )
    norm = next(item for item in parsed if item.name == "fused_add_rms_norm")
    written = [
        argument.alias_info for argument in norm.arguments if argument.alias_info is not None
    ]
    # Two tensors are two memories.
    assert len(written) == 2
    assert not set(written[0].before_set) & set(written[1].before_set)
    assert needs_cuda(engine / "engine/_C.abi3.so")
    assert not needs_cuda(Path(torch._C.__file__ or ""))


@examples(40)
@given(length=st.integers(0, 4096), noise=st.binary(max_size=64))
def test_damaged_shared_objects_have_no_operators_or_fewer(
    engine: Path, tmp_path_factory: pytest.TempPathFactory, length: int, noise: bytes
) -> None:
    whole = (engine / "engine/_C.abi3.so").read_bytes()
    file = tmp_path_factory.mktemp("damaged") / "_C.abi3.so"
    file.write_bytes(whole[:length] + noise)
    assert len(operators_of(file).schemas) <= len(_OPERATORS)
    assert needs_cuda(file) in (True, False)


@pytest.mark.adr("0258-D2")
@pytest.mark.adr("0258-D3")
@pytest.mark.adr("0258-D4")
@pytest.mark.adr("0297-D1")
@pytest.mark.adr("0297-D2")
@pytest.mark.adr("0297-D3")
@pytest.mark.parametrize("data", [True, False])
def test_operators_of_an_engine_compute_what_pytorch_does(engine: Path, data: bool) -> None:
    context = simulated(
        "extension_modules.py", engine, "data" if data else "none", machine="h100-sxm:1", data=data
    )
    lines = [line for remark in context.run.remarks for line in remark()]
    said = next(line for line in lines if line.startswith("operators of extension modules, which"))
    assert "engine_ops.moe_align_block_size" in said
    assert ("_vllm_fa3_C.fwd" in said) == data
    assert any("engine_ops.never_defined" in line for line in lines)
    assert sum("(UVA) is timed as" in line for line in lines) == 1
    if not data:
        assert any("is taken to be even" in line for line in lines)
    names = [instance.template.name for instance in context.run.op_log.instances]
    assert names.count("engine_ops.topk_softmax") == (3 if data else 4)


def times_us(context: RuntimeContext, name: str) -> list[float]:
    return [
        instance.template.duration_ps / 1e6
        for instance in context.run.op_log.instances
        if instance.template.name == name
    ]


def test_scaled_products_of_vllm_take_the_tiles_of_its_rule(engine: Path) -> None:
    context = simulated("scaled_products.py", engine, machine="h200:1", data=False)
    *both, few, one_more = times_us(context, "engine_ops.cutlass_scaled_mm")
    # Measured with the quantisation of the rows, an operator of its own that takes few of these.
    assert both == pytest.approx([877.6, 161.8], rel=0.08)
    # From 17 rows on tiles have 64 rows, whose trips wait for memory. A BLAS has such for both.
    assert one_more > few


@pytest.mark.parametrize(("machine", "measured_us"), [("h100-sxm:1", 377.7), ("h200:1", 344.7)])
def test_keys_of_8_bits_take_vllms_flash_attention_what_was_measured(
    engine: Path, machine: str, measured_us: float
) -> None:
    """Memory would bring them in 330 and 230 us."""
    context = simulated("flash_decode.py", engine, machine=machine, data=False)
    (decode_us,) = times_us(context, "_vllm_fa3_C.fwd")
    # Measured with the write of the new keys, an operator of its own.
    assert decode_us == pytest.approx(measured_us - 3.4, rel=0.08)


@pytest.mark.adr("0258-D3")
def test_operators_of_a_package_are_listed_without_importing_it(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(engine)
    said = kernbench("operators", "engine").output
    assert f"engine/_C.abi3.so: {len(_OPERATORS) - 1} of {len(_OPERATORS)} operators are" in said
    lacks = [line for line in said.splitlines() if line.startswith("  lacks")]
    assert lacks == ["  lacks never_defined"]
    total = len(_OPERATORS) + len(_FA2) + len(_FA3)
    assert f"engine: {total - 1} of {total} operators are defined" in said
    assert said.splitlines()[-1].endswith("an error that has its name and schema.")
    assert "engine" not in sys.modules
    for package, words in (("engin", "no such package"), ("typer", "needs CUDA")):
        run = kernbench("operators", package)
        assert run.exit_code == 2
        assert words in run.output
