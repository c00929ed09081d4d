"""Rows of mixtures of experts: which launches answer them."""

from pathlib import Path

import pytest

from kernbench.accuracy.validation import Row, make_predictor, read_rows
from kernbench.accuracy.validation.predictors.libraries.moe import MoePredictor

_HEAD = (
    "source,device,op,framework,kernel,dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
    "moe_tp_size,moe_ep_size,distribution,time_us\n"
)
_AITER = (
    "source,device,framework,kernel,dtype,q_dtype_a,q_dtype_w,q_type,num_tokens,hidden_size,"
    "inter_size,topk,num_experts,act,g1u1,time_us\n"
)


def rows(path: Path, head: str, *lines: str) -> list[Row]:
    path.write_text(head + "".join(line + "\n" for line in lines))
    return read_rows([path])


def triton(tokens: int, kernel: str = "sglang_fused_moe_triton", stack: str = "sglang") -> str:
    return (
        f"s,H200-SXM-141GB,fused_moe,{stack},{kernel},bfloat16,{tokens},4096,1536,8,128,4,1,"
        f"balanced,100"
    )


def test_rows_are_answered_and_more_tokens_take_longer(tmp_path: Path) -> None:
    found = rows(tmp_path / "moe.csv", _HEAD, *map(triton, (1, 64, 16384)))
    predictor = make_predictor(found[0].category)
    times = [predictor.predict(row).time_us or 0.0 for row in found]
    assert 5 < times[0] < times[1] < times[2]
    # 16384 tokens are 2 * 3 * 16384 * 8 * 4096 * 384 operations.
    assert times[2] > 2 * 3 * 16384 * 8 * 4096 * 384 / 989e6


def test_what_lacks_a_kernel_says_so(tmp_path: Path) -> None:
    (row,) = rows(tmp_path / "moe.csv", _HEAD, triton(1, "a_new_kernel"))
    answer = make_predictor(row.category).predict(row)
    assert answer.time_us is None
    assert answer.why_not == "no kernels for bfloat16 of a_new_kernel"


@pytest.mark.parametrize(
    ("kernel", "launches", "name", "tile"),
    [
        ("moe_ck2stages_gemm1_256x16x128x256_1x4_MulABScale", 2, "aiter_moe_fp8_fp8", 16),
        ("_ZN5aiter46fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_64x256E", 1, "aiter_fmoe_fp8_fp8", 64),
        ("flydsl_moe1_afp8_wfp8_bf16_t32x64x256_w2_gui_kw2_fp8", 2, "aiter_moe_fp8_fp8", 32),
        ("_ZN5aiter52fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_64x2", 1, "aiter_fmoe_fp8_fp8", 64),
    ],
)
def test_names_of_aiter_say_the_tile_and_whether_one_kernel_does_all(
    tmp_path: Path, kernel: str, launches: int, name: str, tile: int
) -> None:
    (row,) = rows(
        tmp_path / "moe_amd.csv",
        _AITER,
        f"s,MI355X,aiter,{kernel},bfloat16,float8_e4m3fn,float8_e4m3fn,per_1x128,4,7168,256,8,256,"
        f"Silu,1,50",
    )
    predictor = make_predictor(row.category)
    assert isinstance(predictor, MoePredictor)
    found = predictor.measured(row).kernels
    assert (len(found), found[0].name) == (launches, name)
    # 31 of 256 experts are expected, with a row each, and 2 * 256 columns.
    trip = found[0].tiles[0].trip
    assert trip.flops % (2 * tile * 128) == 0
    assert predictor.predict(row).time_us
