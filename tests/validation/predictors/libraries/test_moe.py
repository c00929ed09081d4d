"""Rows of mixtures of experts: which launches answer them."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.accuracy.rows.reference import Row, read_rows
from kernbench.hardware import load_library
from validation.predictors.libraries.moe import MoePredictor
from validation.predictors.library_rows import MeasuredKernels
from validation.predictors.registry import make_predictor
from validation.scores.ranges import family_of_row

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
    result = rows(tmp_path / "moe.csv", _HEAD, *map(triton, (1, 64, 16384)))
    predictor = make_predictor(result[0].category)
    times = [predictor.predict(row).time_us or 0.0 for row in result]
    assert 5 < times[0] < times[1] < times[2]
    # 16384 tokens are 2 * 3 * 16384 * 8 * 4096 * 384 operations.
    assert times[2] > 2 * 3 * 16384 * 8 * 4096 * 384 / 989e6


def test_what_lacks_a_kernel_says_so(tmp_path: Path) -> None:
    (row,) = rows(tmp_path / "moe.csv", _HEAD, triton(1, "a_new_kernel"))
    answer = make_predictor(row.category).predict(row)
    assert answer.time_us is None
    assert answer.why_not == "no kernels for bfloat16 of a_new_kernel"


def test_a_row_of_two_releases_is_the_mean_of_what_both_do(tmp_path: Path) -> None:
    head = _HEAD.replace("time_us", "n_releases,time_us")
    line = (
        "s,{device},fused_moe,sglang,sglang_fused_moe_triton,bfloat16,2048,4096,1536,8,128,1,8,"
        "balanced,{releases},100"
    )
    names = [("H200-SXM-141GB", 1), ("H200-SXM-141GB", 2), ("A100-SXM4-80GB", 1)]
    result = rows(
        tmp_path / "moe.csv",
        head,
        *(line.format(device=device, releases=releases) for device, releases in names),
    )
    predictor = make_predictor(result[0].category)
    assert isinstance(predictor, MoePredictor)
    new, both, old = (predictor.measured(row) for row in result)
    assert not new.other
    assert not old.other
    alone, other = (
        replace(both, kernels=kernel, other=()) for kernel in (both.kernels, both.other)
    )
    assert both.time_us() == pytest.approx((alone.time_us() + other.time_us()) / 2)
    assert alone.time_us() == new.time_us()
    # All 8 choices of a token are multiplied, not the one that is the rank's own.
    products = [sum(kernel.flops for kernel in item) for item in (new.kernels, old.kernels)]
    assert products[1] == pytest.approx(8 * products[0], rel=0.1)


def measured(row: Row) -> MeasuredKernels:
    predictor = make_predictor(row.category)
    assert isinstance(predictor, MoePredictor)
    return predictor.measured(row)


@pytest.mark.parametrize(
    ("kernel", "sizes", "chosen"),
    [
        ("moe_torch_flow", "7168,2048,8,256", "pytorch_choice"),
        ("moe_torch_flow", "4096,1536,8,128", "cutlass_choice"),  # 128 experts: its own kernel.
        ("moe_torch_flow", "2688,1856,22,128", "pytorch_choice"),
        ("moe_torch_flow_cutlass", "2048,512,8,256", "cutlass_choice"),  # A later release.
    ],
)
def test_releases_of_tensorrt_llm_choose_many_experts_with_pytorch(
    tmp_path: Path, kernel: str, sizes: str, chosen: str
) -> None:
    line = f"s,H200-SXM-141GB,fused_moe,trtllm,{kernel},bfloat16,64,{sizes},1,4,balanced,100"
    (row,) = rows(tmp_path / "moe.csv", _HEAD, line)
    names = measured(row).names
    assert chosen in names
    assert len([name for name in names if name.endswith("_choice")]) == 1


def test_sglang_is_timed_with_its_choice_on_one_rank_and_without_on_several(
    tmp_path: Path,
) -> None:
    one, several = rows(
        tmp_path / "moe.csv",
        _HEAD,
        triton(64),
        triton(64).replace(",4,1,balanced", ",1,4,balanced"),
    )
    assert "sglang_choice" in measured(one).names
    assert "sglang_choice" not in measured(several).names


def test_the_context_phase_of_deepep_waits_for_its_host_before_its_products(
    tmp_path: Path,
) -> None:
    line = (
        "s,H200-SXM-141GB,wideep_context_moe,sglang,deepepmoe,fp8_block,{},7168,2048,8,256,1,32,"
        "uniform,100"
    )
    few, many = (
        measured(row)
        for row in rows(tmp_path / "moe.csv", _HEAD, line.format(256), line.format(131072))
    )
    # A host that is slower than the device decides; else what it does first comes on top.
    assert few.time_us() == few.least_us
    assert many.time_us() == pytest.approx(replace(many, extra_us=0).time_us() + many.extra_us)


def test_what_deepep_received_is_in_eight_bits_already(tmp_path: Path) -> None:
    line = (
        "s,H200-SXM-141GB,wideep_generation_moe,sglang,deepepmoe,fp8_block,256,7168,2048,8,256,1,"
        "32,uniform,100"
    )
    (row,) = rows(tmp_path / "moe.csv", _HEAD, line)
    assert [kernel.name for kernel in measured(row).kernels] == [
        "deepep_moe_fp8_block", "deepep_steps_activate", "deepep_moe_fp8_block",
    ]  # fmt: skip


def test_grouped_products_of_aiter_repeat_the_times_of_one_size(tmp_path: Path) -> None:
    head = _AITER.replace("time_us", "path,time_us")
    line = (
        "s,MI355X,aiter,grouped_gemm1_fp4_gugu,bfloat16,float4_e2m1fn_x2,float4_e2m1fn_x2,"
        "per_1x32,{},aiter/configs/{}_fmoe.csv,50"
    )
    first, second, other = rows(
        tmp_path / "moe_amd.csv",
        head,
        line.format("16,7168,3072,6,96,Silu,1", "tuned_grouped"),
        line.format("64,7168,768,6,384,Silu,1", "tuned_grouped"),
        line.format("16,7168,768,6,384,Silu,1", "tuned"),
    )
    assert measured(first).time_us() == measured(second).time_us() > measured(other).time_us()


@pytest.mark.parametrize(
    ("kernel", "tokens", "tile"),
    [
        ("sglang_fused_moe_triton", 128, (16, 32, 64)),
        ("sglang_fused_moe_triton", 129, (64, 64, 32)),
        ("vllm_unquantizedfusedmoe_triton_tritonexperts", 32, (16, 64, 128)),
        ("vllm_unquantizedfusedmoe_triton_tritonexperts", 600, (128, 128, 64)),
    ],
)
def test_triton_takes_the_tile_of_its_default_configuration(
    tmp_path: Path, kernel: str, tokens: int, tile: tuple[int, int, int]
) -> None:
    (row,) = rows(tmp_path / "moe.csv", _HEAD, triton(tokens, kernel))
    predictor = make_predictor(row.category)
    assert isinstance(predictor, MoePredictor)
    products = [kernel for kernel in predictor.measured(row).kernels if kernel.flops]
    rows_, columns, depth = tile
    assert [product.tiles[0].trip.flops for product in products] == [
        2 * rows_ * columns * depth
    ] * 2
    assert products[0].tiles[0].trips == 4096 / depth


@pytest.mark.parametrize(
    ("kernel", "launches", "name", "tile"),
    [
        ("moe_ck2stages_gemm1_256x16x128x256_1x4_MulABScale", 2, "aiter_moe_fp8_fp8_block", 16),
        (
            "_ZN5aiter46fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_64x256E",
            1,
            "aiter_fmoe_fp8_fp8_block",
            64,
        ),
        ("flydsl_moe1_afp8_wfp8_bf16_t32x64x256_w2_gui_kw2_fp8", 2, "aiter_moe_fp8_fp8_block", 32),
        (
            "_ZN5aiter52fmoe_bf16_blockscaleFp8_g1u1_vs_ps_silu_64x2",
            1,
            "aiter_fmoe_fp8_fp8_block",
            64,
        ),
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
    kernels = predictor.measured(row).kernels
    assert (len(kernels), kernels[0].name) == (launches, name)
    # 31 of 256 experts are expected, with a row each, and 2 * 256 columns.
    trip = kernels[0].tiles[0].trip
    assert trip.flops % (2 * tile * 128) == 0
    assert predictor.predict(row).time_us


@pytest.mark.adr("0303-D1")
@pytest.mark.parametrize(
    ("kernel", "dtype", "launched"),
    [
        ("vllm_marlin_moe", "int4_wo", {"marlin_moe_int4", "moe_align", "moe_steps_sum"}),
        ("sglang_marlin_moe", "int4_wo", {"marlin_moe_int4", "moe_align", "moe_steps_sum"}),
        ("deepepmoe", "fp8_block", {"deepep_moe_fp8_block"}),
    ],
)
def test_rows_of_kernels_that_programs_launch_take_their_constants(
    tmp_path: Path, kernel: str, dtype: str, launched: set[str]
) -> None:
    line = f"s,H200-SXM-141GB,fused_moe,x,{kernel},{dtype},64,7168,2048,8,384,8,1,balanced,100"
    (row,) = rows(tmp_path / "moe.csv", _HEAD, line)
    assert launched == {*measured(row).names} & {*load_library("sm90").families["moe"].kernels}
    kernels = [item for item in measured(row).kernels if item.flops]
    name = f"{kernels[0].name} + of_a_stack"
    assert family_of_row(row, name) == "moe"
    assert family_of_row(row, "triton_moe_bf16") == "moe of stacks"


def test_few_tokens_of_a_file_that_repeats_are_those_of_its_fewest(tmp_path: Path) -> None:
    head = _AITER.replace("time_us", "path,time_us")
    line = (
        "s,MI308X,aiter,moe_ck2stages_gemm1_256x32x64x256_1x4,bfloat16,float8_e4m3fnuz,"
        "float8_e4m3fnuz,per_Token,{},7168,256,8,256,Silu,1,{},50"
    )
    one, sixteen, own = rows(
        tmp_path / "moe_amd.csv",
        head,
        line.format(1, "aiter/configs/tuned_fmoe.csv"),
        line.format(16, "aiter/configs/tuned_fmoe.csv"),
        line.format(1, "aiter/configs/glm5_ptpc_tuned_fmoe.csv"),
    )
    times = [
        make_predictor(item.category).predict(item).time_us or 0 for item in (one, sixteen, own)
    ]
    assert times[0] == times[1] > times[2] > 0


@pytest.mark.parametrize(
    ("kernel", "sizes", "gated"),
    [
        ("vllm_unquantizedfusedmoe_triton_tritonexperts", "2688,1856", False),
        ("vllm_unquantizedfusedmoe_triton_tritonexperts", "4096,1856", True),
        ("vllm_fused_moe", "2688,1856", True),
        ("moe_torch_flow_nongated", "4096,1536", False),
    ],
)
def test_experts_have_a_gate_unless_the_model_has_none_and_the_source_says_so(
    tmp_path: Path, kernel: str, sizes: str, gated: bool
) -> None:
    line = f"s,H200-SXM-141GB,fused_moe,x,{kernel},bfloat16,64,{sizes},6,128,1,1,balanced,100"
    (row,) = rows(tmp_path / "moe.csv", _HEAD, line)
    predictor = make_predictor(row.category)
    assert isinstance(predictor, MoePredictor)
    kernels = [kernel for kernel in predictor.measured(row).kernels if kernel.flops]
    read = [item.hbm_read_bytes for item in kernels]
    assert len(kernels) == 2
    assert read[0] == pytest.approx((2 if gated else 1) * read[1], rel=0.1)
