"""Rows of MLA and of linear attention: which launches answer them, and what has no answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.accuracy.rows.reference import Row, read_rows
from validation.predictors.library_rows import LibraryPredictor
from validation.predictors.registry import make_predictor
from validation.sources.harness import (
    CHUNK_LIST_HOSTS,
    KDA_CONVOLUTION_HOSTS,
    MLA_HOSTS,
)

MLA = (
    "source,device,op,framework,kernel,mla_dtype,kv_dtype,batch,q_len,kv_len,heads,tp_size,time_us"
)
LINEAR = (
    "source,device,op,framework,kernel,phase,batch_size,seq_len,num_tokens,d_model,d_conv,"
    "num_k_heads,head_k_dim,num_v_heads,head_v_dim,model_name,d_state,nheads,head_dim,n_groups,"
    "chunk_size,time_us"
)


def rows(folder: Path, header: str, *lines: str) -> list[Row]:
    path = folder / "rows.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    return read_rows([path])


def names(row: Row) -> list[str]:
    predictor = make_predictor(row.category)
    assert isinstance(predictor, LibraryPredictor)
    return [kernel.name for kernel in predictor.measured(row).kernels]


def test_mla_rows_name_the_launches_of_their_stack(tmp_path: Path) -> None:
    result = rows(
        tmp_path, MLA,
        "s,H100-SXM-80GB,context_mla,trtllm,default,bfloat16,fp8,2,64,64,8,16,1",
        "s,H100-SXM-80GB,generation_mla,sglang,flash_attention,bfloat16,fp8,2,1,64,8,16,1",
        "s,H100-SXM-80GB,generation_mla,sglang,flash_attention,bfloat16,bfloat16,2,1,64,8,16,1",
        "s,A100-SXM4-80GB,generation_mla,trtllm,default,bfloat16,bfloat16,2,1,64,8,16,1",
        "s,L40S,mla_gen_pre,trtllm,trtllm_fp8_block_scaling_bmm_out,fp8,,64,,,8,,1",
        "s,H100-SXM-80GB,mla_gen_post,vllm,vllm_torch_bmm,bfloat16,,64,,,8,,1",
    )  # fmt: skip
    attention = "mla_sglang_flash_attention_generation"
    assert [names(row) for row in result] == [
        ["mla_trtllm_default_context_fp8_prepare", "mla_trtllm_default_context_fp8"],
        [f"{attention}_fp8_cache", f"{attention}_fp8", f"{attention}_fp8_combine"],
        [attention, f"{attention}_combine"],
        ["mla_trtllm_default_generation"],
        ["mla_trtllm_product_fp8_quantise", "mla_trtllm_product_fp8"],
        ["mla_product"],
    ]


def test_linear_rows_name_the_launches_of_their_kernel(tmp_path: Path) -> None:
    qwen = "d,4,16,128,32,128,Qwen,,,,,,1".replace("d,", "2560,", 1)
    shard = qwen.replace("4,16,128,32", "4,4,128,8")
    mamba = "4096,4,,,,,Nano,128,64,64,8,128,1"
    result = rows(
        tmp_path, LINEAR,
        f"s,L40S,gdn,sglang,causal_conv1d_fn,context,3,64,192,{shard}",
        f"s,RTX-PRO-6000-Server,gdn,sglang,causal_conv1d_fn,context,3,64,192,{qwen}",
        f"s,L40S,mamba2,trtllm,causal_conv1d_fn,context,2,64,128,{mamba}",
        f"s,L40S,gdn,sglang,chunk_gated_delta_rule,context,3,64,192,{qwen}",
        f"s,H200-SXM-141GB,gdn,vllm,chunk_gated_delta_rule_flashinfer,context,3,64,192,{qwen}",
        f"s,L40S,gdn,sglang,fused_recurrent_gated_delta_rule,generation,3,1,3,{qwen}",
        f"s,L40S,kda,vllm,fused_recurrent_kda,verify,3,4,12,{qwen}",
        f"s,L40S,kda,vllm,causal_conv1d_fn_qkv3,context,3,4,12,{qwen}",
    )  # fmt: skip
    assert [names(row) for row in result] == [
        ["linear_sglang_gdn_convolution"],
        ["linear_gdn_convolution_each"],
        ["linear_trtllm_convolution"],
        ["linear_chunk_gated_delta_rule_products", "linear_chunk_gated_delta_rule"],
        ["linear_chunk_gated_delta_rule_flashinfer"],
        ["linear_gdn_decode"],
        ["linear_kda_draft_decode"],
        ["linear_vllm_kda_convolution"] * 3,
    ]


def test_a_convolution_of_two_releases_is_the_mean_of_both(tmp_path: Path) -> None:
    head = LINEAR.replace("time_us", "n_releases,time_us")
    line = "s,{},gdn,{},causal_conv1d_fn,context,3,64,192,2560,4,16,128,32,128,Qwen,,,,,,{},1"
    looped, both, vllm, waits = rows(
        tmp_path, head,
        line.format("RTX-PRO-6000-Server", "sglang", 1),
        line.format("RTX-PRO-6000-Server", "sglang", 2),
        line.format("B200-SXM", "vllm", 1),
        line.format("B200-SXM", "vllm", 2),
    )  # fmt: skip
    predictor = make_predictor(looped.category)
    assert isinstance(predictor, LibraryPredictor)
    measured = predictor.measured(both)
    alone = replace(measured, other=())
    times = [predictor.measured(item).time_us() for item in (looped, both, vllm, waits)]
    assert times[1] == pytest.approx((times[0] + alone.time_us()) / 2)
    # The other release lists chunks on the host, which the device waits for.
    start, per_sequence, per_token = CHUNK_LIST_HOSTS["b200"]
    host_us = start + 3 * per_sequence + 192 * per_token
    assert times[3] == pytest.approx((times[2] + host_us) / 2)


def test_an_unaligned_sequence_is_convolved_element_by_element(tmp_path: Path) -> None:
    line = (
        "s,H200-SXM-141GB,mamba2,trtllm,causal_conv1d_fn,context,8,{},{},4096,4,,,,,Nano,128,64,64,"
        "8,128,1"
    )
    short, long = rows(tmp_path, LINEAR, line.format(1, 8), line.format(64, 512))
    assert names(short) == ["linear_trtllm_convolution_unaligned"]
    predictor = make_predictor(short.category)
    assert (predictor.predict(short).time_us or 0) > (predictor.predict(long).time_us or 0)


def test_shapes_at_the_edges_have_finite_times_that_grow(tmp_path: Path) -> None:
    line = "s,H100-SXM-80GB,{},trtllm,default,bfloat16,bfloat16,{},{},{},{},1,1"
    texts = [
        line.format(op, batch, tokens if op == "context_mla" else 1, tokens, heads)
        for op in ("context_mla", "generation_mla")
        for batch, tokens, heads in ((1, 1, 1), (3, 1, 5), (1, 4097, 5), (1024, 1, 128))
    ]
    times = []
    for row in rows(tmp_path, MLA, *texts):
        answer = make_predictor(row.category).predict(row)
        assert answer.time_us is not None, answer.why_not
        times.append(answer.time_us)
    for least, *others in (times[:4], times[4:]):
        assert 1 < least <= min(others)
        assert max(others) < 1e5


def test_what_no_kernel_is_described_for_is_named(tmp_path: Path) -> None:
    asked = rows(
        tmp_path, MLA,
        "s,H100-SXM-80GB,context_mla,hf,eager,bfloat16,bfloat16,2,64,64,8,16,1",
        "s,H100-SXM-80GB,sparse_context_mla,sglang,fa3,fp8_block,fp8,2,64,64,8,16,1",
    ) + rows(
        tmp_path, LINEAR,
        "s,L40S,rwkv,sglang,wkv6,context,3,64,192,2560,4,16,128,32,128,RWKV,,,,,,1",
    )  # fmt: skip
    why_nots = [make_predictor(row.category).predict(row).why_not for row in asked]
    assert why_nots == [
        "no kernel for context_mla of hf eager",
        "no kernel for sparse_context_mla",
        "no kernel for rwkv wkv6",
    ]


def test_a_host_that_issues_without_a_graph_is_waited_for(tmp_path: Path) -> None:
    line = "s,H100-SXM-80GB,generation_mla,vllm,vllm_flashmla,bfloat16,fp8,{},1,{},8,16,1"
    few, many = rows(tmp_path, MLA, line.format(1, 64), line.format(512, 32768))
    assert (
        make_predictor(few.category).predict(few).time_us
        == MLA_HOSTS["generation_mla", "vllm_flashmla"]
    )
    device_us = make_predictor(many.category).predict(many).time_us
    latents_us = 512 * 32768 * 576 / 3.35e6
    assert device_us is not None
    assert latents_us < device_us < 3 * latents_us


def test_three_convolutions_wait_for_their_host_and_for_each_other(tmp_path: Path) -> None:
    heads = "7168,4,24,128,24,128,Kimi,,,,,,1"
    line = "s,{},kda,vllm,causal_conv1d_fn_qkv3,context,64,2048,131072," + heads
    slow, fast = rows(tmp_path, LINEAR, line.format("GB200-SXM"), line.format("B200-SXM"))
    times = [make_predictor(row.category).predict(row).time_us or 0.0 for row in (slow, fast)]
    hosts = [KDA_CONVOLUTION_HOSTS[name] for name in ("gb200", "b200")]
    moved_us = 3 * 131072 * 24 * 128 * 4 / 8e6
    assert all(time > host + moved_us for time, host in zip(times, hosts, strict=True))
