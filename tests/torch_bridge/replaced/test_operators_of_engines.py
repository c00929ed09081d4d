"""Operators of engines beyond those of dense models, each against its format or PyTorch's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import (
    MARLIN,
    ExpertProduct,
    expert_product,
    sort_choices,
    times_of,
)
from tests.torch_bridge.running import simulated
from tests.torch_bridge.shared_objects import make_engine

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
_OPERATORS = (
    "swap_blocks(Tensor src, Tensor! dst, int block_size_in_bytes, Tensor block_mapping) -> ()",
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
    "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache, Tensor slot_mapping, str "
    "kv_cache_dtype, Tensor scale, bool skip_scale=False) -> ()",
    "concat_and_cache_mla_rope_fused(Tensor positions, Tensor! q_pe, Tensor! k_pe, Tensor kv_c, "
    "Tensor cos_sin_cache, bool is_neox, Tensor slot_mapping, Tensor! kv_cache, str "
    "kv_cache_dtype, Tensor kv_cache_scale) -> ()",
    "convert_fp8(Tensor! dst_cache, Tensor src_cache, float scale, str kv_cache_dtype) -> ()",
    "gather_and_maybe_dequant_cache(Tensor src_cache, Tensor! dst, Tensor block_table, Tensor "
    "cu_seq_lens, Tensor token_to_seq, int num_tokens, str kv_cache_dtype, Tensor scale, Tensor? "
    "seq_starts) -> ()",
    "cp_gather_cache(Tensor src_cache, Tensor! dst, Tensor block_table, Tensor cu_seq_lens, int "
    "batch_size, Tensor? seq_starts) -> ()",
    "per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, "
    "float eps, float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, "
    "bool dummy_is_tma_aligned ) -> ()",
    "per_token_group_quant_int8(Tensor input, Tensor! output_q, Tensor! output_s, int group_size,"
    " float eps, float int8_min, float int8_max) -> ()",
    "machete_mm(Tensor A, Tensor B, int b_type, ScalarType? out_type, Tensor? group_scales, "
    "Tensor? group_zeros, int? group_size, Tensor? channel_scales, Tensor? token_scales, str? "
    "schedule) -> Tensor",
    "machete_prepack_B(Tensor B, ScalarType a_type, int b_type, ScalarType? group_scales_type) ->"
    " Tensor",
    "marlin_gemm(Tensor a, Tensor? c_or_none, Tensor b_q_weight, Tensor? b_bias_or_none, Tensor "
    "b_scales, Tensor? a_scales, Tensor? global_scale, Tensor? b_zeros_or_none, Tensor workspace,"
    " int b_type_id, SymInt size_m, SymInt size_n, SymInt size_k, bool use_atomic_add, bool "
    "use_fp32_reduce, bool is_zp_float) -> Tensor",
    "gptq_marlin_repack(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits, bool "
    "is_a_8bit) -> Tensor",
    "awq_marlin_repack(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits, bool "
    "is_a_8bit) -> Tensor",
    "cutlass_scaled_mm_azp(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, "
    "Tensor azp_adj, Tensor? azp, Tensor? bias) -> ()",
    "cutlass_moe_mm(Tensor! out_tensors, Tensor a_tensors, Tensor b_tensors, Tensor a_scales, "
    "Tensor b_scales, Tensor expert_offsets, Tensor problem_sizes, Tensor a_strides, Tensor "
    "b_strides, Tensor c_strides, bool per_act_token, bool per_out_ch) -> ()",
    "get_cutlass_moe_mm_data(Tensor topk_ids, Tensor! expert_offsets, Tensor! problem_sizes1, "
    "Tensor! problem_sizes2, Tensor! input_permutation, Tensor! output_permutation, int "
    "num_experts, int n, int k, Tensor? blockscale_offsets, bool is_gated) -> ()",
    "cutlass_scaled_fp4_mm(Tensor! out, Tensor a, Tensor b, Tensor block_scale_a, Tensor "
    "block_scale_b, Tensor alpha) -> ()",
    "scaled_fp4_quant(Tensor input, Tensor input_scale, bool is_sf_swizzled_layout) -> (Tensor, "
    "Tensor)",
    "sm100_cutlass_mla_decode(Tensor! out, Tensor! lse, Tensor q_nope, Tensor q_pe, Tensor "
    "kv_c_and_k_pe_cache, Tensor seq_lens, Tensor page_table, Tensor workspace, float scale, int "
    "num_kv_splits) -> ()",
    "awq_gemm(Tensor _in_feats, Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt "
    "split_k_iters) -> Tensor",
    "awq_dequantize(Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters,"
    " int thx, int thy) -> Tensor",
    "hadacore_transform(Tensor! x, bool inplace) -> Tensor",
    "rms_norm_per_block_quant(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float "
    "epsilon, Tensor? scale_ub, Tensor!? residual, int group_size, bool is_scale_transposed) -> "
    "()",
    "silu_and_mul_per_block_quant(Tensor! out, Tensor input, Tensor! scales, int group_size, "
    "Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()",
    "mul_and_silu(Tensor! out, Tensor input) -> ()",
    "silu_and_mul_with_clamp(Tensor! result, Tensor input, float limit, float alpha=1.0, float "
    "beta=0.0) -> ()",
    "fatrelu_and_mul(Tensor! out, Tensor input, float threshold) -> ()",
    "situ_and_mul(Tensor! out, Tensor input, float beta=1.0, float linear_beta=-1.0) -> ()",
    "gelu_new(Tensor! out, Tensor input) -> ()",
    "gelu_quick(Tensor! out, Tensor input) -> ()",
    "relu_squared(Tensor! out, Tensor input) -> ()",
    "static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None)"
    " -> ()",
    "gptq_gemm(Tensor a, Tensor b_q_weight, Tensor b_gptq_qzeros, Tensor b_gptq_scales, bool "
    "use_exllama, bool use_v2_format, int bit) -> Tensor",
    "gptq_shuffle(Tensor! q_weight, int bit) -> ()",
    "dense_decode_fwd(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor "
    "block_table, float softmax_scale, bool is_causal, Tensor(a)? tile_scheduler_metadata, "
    "Tensor(b)? num_splits, Tensor!? out_) -> (Tensor!, Tensor, Tensor(a)?, Tensor(b)?)",
    "topk_softplus_sqrt(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices,"
    " Tensor gating_output, bool renormalize, float routed_scaling_factor, Tensor? bias, Tensor? "
    "input_ids, Tensor? tid2eid, Tensor? is_padding, Tensor? bias_vl=None, int "
    "image_sentinel_lo=0) -> ()",
    "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! "
    "sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad, Tensor? "
    "maybe_expert_map, Tensor!? scatter_idx=None) -> ()",
    "batched_moe_align_block_size(int max_tokens_per_batch, int block_size, Tensor "
    "expert_num_tokens, Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! "
    "num_tokens_post_pad) -> ()",
    "moe_wna16_marlin_gemm(Tensor! a, Tensor? c_or_none, Tensor! b_q_weight, Tensor? "
    "b_bias_or_none, Tensor! b_scales, Tensor? a_scales, Tensor? global_scale, Tensor? "
    "b_zeros_or_none, Tensor! workspace, Tensor sorted_token_ids, Tensor! expert_ids, Tensor! "
    "num_tokens_past_padded, Tensor! topk_weights, int moe_block_size, int top_k, bool "
    "mul_topk_weights, int b_type_id, int size_m, int size_n, int size_k, bool use_atomic_add, "
    "bool use_fp32_reduce, bool is_zp_float, int thread_k, int thread_n, int blocks_per_sm) -> "
    "Tensor",
    "moe_permute(Tensor input, Tensor topk_ids, Tensor token_expert_indices, Tensor? expert_map, "
    "int n_expert, int n_local_expert, int topk, Tensor! permuted_input, Tensor! "
    "expert_first_token_offset, Tensor! inv_permuted_idx, Tensor! permuted_idx)->()",
    "moe_unpermute(Tensor permuted_hidden_states, Tensor topk_weights, Tensor inv_permuted_idx, "
    "Tensor? expert_first_token_offset, int topk, Tensor! hidden_states)->()",
    "shuffle_rows(Tensor input_tensor, Tensor dst2src_map, Tensor! output_tensor) -> ()",
    "grouped_topk(Tensor scores, int n_group, int topk_group, int topk, bool renormalize, float "
    "routed_scaling_factor, Tensor bias, int scoring_func) -> (Tensor, Tensor)",
)
_FLASH_MLA = (
    "dense_decode_fwd(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, "
    "Tensor block_table, float softmax_scale, bool is_causal, Tensor(a)? tile_scheduler_metadata, "
    "Tensor(b)? num_splits, Tensor(c!)? out_) -> (Tensor(c!), Tensor, Tensor(a)?, Tensor(b)?)",
)

_DEEP_GEMM = (
    "get_mn_major_tma_aligned_tensor(Tensor(a) sf) -> Tensor(a)",
    "fp8_fp4_gemm_nt(Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, Tensor? c=None, "
    "int[3]? recipe=None, int[2]? recipe_a=None, int[2]? recipe_b=None, str compiled_dims='nk', "
    "bool disable_ue8m0_cast=False, float? alpha=None, int epilogue_kind=0, float? "
    "epilogue_alpha=None, Tensor? epilogue_sfd=None) -> ()",
    "m_grouped_fp8_fp4_gemm_nt_contiguous(Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) "
    "d, Tensor grouped_layout, int[3]? recipe=None, int[2]? recipe_a=None, int[2]? recipe_b=None,"
    " str compiled_dims='nk', bool disable_ue8m0_cast=False, bool use_psum_layout=False, bool "
    "ensure_zero_padding=True, int? expected_m_for_psum_layout=None, int epilogue_kind=0, float? "
    "epilogue_alpha=None, Tensor? epilogue_sfd=None) -> ()",
    "m_grouped_fp8_fp4_gemm_nt_masked(Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, "
    "Tensor masked_m, int expected_m, int[3]? recipe=None, int[2]? recipe_a=None, int[2]? "
    "recipe_b=None, str compiled_dims='nk', bool disable_ue8m0_cast=False, int epilogue_kind=0, "
    "float? epilogue_alpha=None, Tensor? epilogue_sfd=None) -> ()",
    "bf16_gemm_nn(Tensor a, Tensor b, Tensor(d!) d, Tensor? c=None, str compiled_dims='nk', "
    "float? alpha=None, int epilogue_kind=0, float? epilogue_alpha=None, Tensor? "
    "epilogue_sfd=None) -> ()",
)
_SGLANG = (
    "merge_state_v2(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, Tensor! v_merged, Tensor! "
    "s_merged) -> ()",
    "rmsnorm(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()",
    "gemma_fused_add_rmsnorm(Tensor! input, Tensor! residual, Tensor weight, float eps, bool "
    "enable_pdl) -> ()",
    "concat_mla_k(Tensor! k, Tensor k_nope, Tensor k_rope) -> ()",
    "fp8_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType "
    "out_dtype, Tensor? bias) -> Tensor",
    "fp8_blockwise_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, "
    "ScalarType out_dtype) -> Tensor",
    "sgl_per_tensor_quant_fp8(Tensor input, Tensor! output_q, Tensor! output_s, bool is_static) "
    "-> ()",
    "sgl_per_token_quant_fp8(Tensor input, Tensor! output_q, Tensor! output_s) -> ()",
    "dsv3_router_gemm(Tensor! output, Tensor mat_a, Tensor mat_b) -> ()",
    "moe_sum_reduce(Tensor input, Tensor output, float routed_scaling_factor) -> ()",
    "moe_fused_gate(Tensor input, Tensor bias, int num_expert_group, int topk_group, int topk, "
    "int num_fused_shared_experts, float routed_scaling_factor, bool "
    "apply_routed_scaling_factor_on_output) -> (Tensor[])",
    "store_kv_cache(Tensor k_cache, Tensor v_cache, Tensor out_loc, Tensor k, Tensor v) -> ()",
    "bmm_fp8(Tensor A, Tensor B, Tensor! D, Tensor A_scale, Tensor B_scale, Tensor "
    "workspace_buffer, int cublas_handle) -> ()",
    "top_k_renorm_probs(Tensor probs, Tensor! renorm_probs, Tensor? maybe_top_k_arr, int "
    "top_k_val) -> ()",
    "top_p_renorm_probs(Tensor probs, Tensor! renorm_probs, Tensor? maybe_top_p_arr, float "
    "top_p_val) -> ()",
    "apply_token_bitmask_inplace_cuda(Tensor logits, Tensor bitmask, Tensor? indices=None) -> ()",
)


@pytest.fixture(scope="module")
def many_operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of operators by their schemas alone."""
    modules = {
        "_C": ("engine_more", _OPERATORS),
        "_mla": ("engine_mla", _FLASH_MLA),
        "_gemm": ("deep_gemm", _DEEP_GEMM),
        # Its names are stripped.
        "common_ops": ("", _SGLANG),
    }
    return make_engine(tmp_path_factory.mktemp("more"), modules, "engine_of_many")


@pytest.mark.adr("0258-D2")
@pytest.mark.adr("0268-D1")
@pytest.mark.adr("0268-D3")
@pytest.mark.parametrize(
    "part",
    [
        *("activations", "packed", "experts", "caches", "quantized", "latent", "blocks"),
        "other_names",
    ],
)
def test_operators_of_engines_compute_what_their_formats_define(
    many_operators: Path, part: str
) -> None:
    machine = "b200:1" if part == "quantized" else "h100-sxm:1"  # NVFP4 needs Blackwell
    context = simulated("operators_of_engines.py", many_operators, part, machine=machine)
    names = {instance.template.name for instance in context.run.op_log.instances}
    assert any(name.startswith(("engine_", "deep_gemm")) for name in names)


@pytest.mark.adr("0268-D2")
@pytest.mark.adr("0303-D1")
def test_products_of_packed_weights_are_timed_by_their_bytes(many_operators: Path) -> None:
    """A row times weights of 4 bits, groups of 128 with a scale of 16 bits, reads HBM so fast."""
    context = simulated(
        "operators_of_engines.py", many_operators, "times", machine="h100-sxm:1", data=False
    )
    took = {
        instance.template.name: instance.ends_ps[0] - instance.starts_ps[0]
        for instance in context.run.op_log.instances
    }
    k, n, hbm = 8192, 28672, 3.35e12
    least_ps = k * n * (0.5 + 2 / 128) / hbm * 1e12
    for name in ("marlin_gemm", "machete_mm"):
        assert least_ps < took[f"engine_more.{name}"] < 1.6 * least_ps
    # Experts that have rows are read, others are not; half of the eight are of one token.
    experts = took["engine_more.moe_wna16_marlin_gemm"]
    assert experts < 0.75 * took["engine_more.cutlass_moe_mm"]
    sip, library = load_machine("h100-sxm").sip, load_library("sm90")
    product = ExpertProduct(
        rows=(16,) * 4, columns=2048, depth=k, weight_bytes=0.5 + 2 / k, dtype="float16",
        pes=sip.num_pes,
    )  # fmt: skip
    launch = expert_product(product, replace(MARLIN, name="marlin_moe_int4"))
    launches = {
        "moe_wna16_marlin_gemm": launch,
        "moe_align_block_size": sort_choices("moe_align", 4),
    }
    for name, launch in launches.items():
        times = [times_of((launch,), sip, library, queued)[0] for queued in (False, True)]
        assert took[f"engine_more.{name}"] in [round(1e6 * time.total_us) for time in times]


OF_PEERS = (
    "init_custom_ar(int[] ipc_tensors, Tensor rank_data, int rank, bool fully_connected) -> int",
    "all_reduce(int fa, Tensor inp, Tensor! out, int reg_buffer, int reg_buffer_sz_bytes) -> ()",
    "register_buffer(int fa, int[] ipc_tensors) -> ()",
    "get_graph_buffer_ipc_meta(int fa) -> (int[], int[])",
    "register_graph_buffers(int fa, int[][] handles, int[][] offsets) -> ()",
    "allocate_shared_buffer_and_handle(int size) -> (int, Tensor)",
    "open_mem_handle(Tensor mem_handle) -> int",
    "dispose(int fa) -> ()",
    "meta_size() -> int",
)


@pytest.mark.adr("0268-D4")
@pytest.mark.parametrize("ranks", [2, 4])
def test_engines_own_all_reduce_takes_the_time_of_its_kernels(tmp_path: Path, ranks: int) -> None:
    make_engine(tmp_path, {"_C": ("_C_custom_ar", OF_PEERS)}, "engine_of_peers")
    context = simulated("custom_all_reduce.py", tmp_path, nprocs=ranks, machine=f"h100-sxm:{ranks}")
    took = [
        max(instance.ends_ps) - max(instance.starts_ps)
        for instance in context.run.op_log.instances
        if "all_reduce" in instance.template.name
    ]
    small, large, in_graph, by_nccl = took
    assert small == in_graph
    # 4 KiB: a kernel that loads them from all peers, against rings of NCCL's.
    assert small < 0.7 * by_nccl
    assert large > small
