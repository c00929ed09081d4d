"""Attention rows: which kernel answers which row, and what is refused."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from kernbench.library_kernels import attention_kernels
from validation.predictors.attention import AttentionPredictor

HEAD = (
    "source,device,op,framework,kernel,attn_dtype,kv_dtype,batch,q_len,kv_len,heads,kv_heads,"
    "head_dim,window,causal,time_us,note"
)
ROWS = {
    "sglang prefill": "A100-SXM4-80GB,attention_prefill,sglang,flash_attention,bfloat16,bfloat16,"
    "4,512,512,16,2,128,0,yes,90,",
    "group in tensor cores": "A100-SXM4-80GB,attention_decode,trtllm,torch_flow,bfloat16,bfloat16,"
    "8,1,4096,16,2,128,0,n/a,50,",
    "a query of its own": "A100-SXM4-80GB,attention_decode,trtllm,torch_flow,bfloat16,bfloat16,"
    "8,1,4096,16,16,128,0,n/a,50,",
    "fp8 cache": "H100-SXM-80GB,attention_decode,sglang,fa3,bfloat16,fp8,"
    "8,1,4096,16,2,128,0,n/a,50,",
    "a window": "H100-SXM-80GB,attention_prefill,sglang,triton,bfloat16,bfloat16,"
    "4,512,512,16,2,256,1024,yes,90,",
    "a head size": "L40S,attention_prefill,trtllm,torch_flow,fp8,fp8,"
    "4,512,512,16,2,256,0,yes,90,",
    "vllm's pages": "A100-SXM4-80GB,attention_prefill,vllm,vllm_flash_attn,bfloat16,bfloat16,"
    "4,512,512,16,2,128,0,yes,90,",
    "vllm's queries": "H100-SXM-80GB,attention_decode,vllm,vllm_flash_attn_fa3,bfloat16,fp8,"
    "8,1,64,16,2,128,0,n/a,50,",
    "a picture": "H100-SXM-80GB,attention_encoder,vllm,vllm_vit_flash_attn_fa3,bfloat16,bfloat16,"
    "4,512,512,16,16,64,0,no,90,",
    "suspect": "L40S,attention_decode,sglang,flash_attention,bfloat16,bfloat16,"
    "8,1,4096,16,2,128,0,n/a,50,suspect: above the device peak",
    "no cache is so large": "L40S,attention_decode,sglang,flash_attention,bfloat16,bfloat16,"
    "4,1,131072,8,8,128,0,n/a,9.4,cache-resident KV: above DRAM bandwidth",
    "in the cache": "L40S,attention_decode,sglang,flash_attention,bfloat16,bfloat16,"
    "4,1,512,8,8,128,0,n/a,9.4,cache-resident KV: above DRAM bandwidth",
    "no such stack": "A100-SXM4-80GB,attention_prefill,abacus,beads,bfloat16,bfloat16,"
    "4,512,512,16,2,128,0,yes,90,",
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float | None, str]]:
    path = Path(tmp_path_factory.mktemp("rows")) / "attention.csv"
    path.write_text("\n".join([HEAD, *(f"me,{row}" for row in ROWS.values())]) + "\n")
    predictor = AttentionPredictor(presets())
    predicts = [predictor.predict(row) for row in read_rows([path])]
    return {
        name: (item.time_us, item.how or item.why_not)
        for name, item in zip(ROWS, predicts, strict=True)
    }


def test_each_stack_and_dtype_has_its_kernel(
    answers: dict[str, tuple[float | None, str]],
) -> None:
    assert "sglang_flash_attention_prefill" in answers["sglang prefill"][1]
    assert "torch_flow_decode_xqa" in answers["group in tensor cores"][1]
    assert "torch_flow_decode_mmha" in answers["a query of its own"][1]
    assert "fa3_decode_fp8kv" in answers["fp8 cache"][1]


@pytest.mark.adr("0128-D9")
def test_rows_of_what_programs_launch_are_answered_by_it(
    answers: dict[str, tuple[float | None, str]],
) -> None:
    for name, kernel in (
        ("vllm's pages", "flash2_paged"), ("vllm's queries", "flash3_decode_fp8"),
        ("a picture", "flash3_forward"),
    ):  # fmt: skip
        assert answers[name][1].split(" + ")[-1] == kernel
        assert any(kernel in attention_kernels(name) for name in ("sm80", "sm90"))
    assert "flash_append" in answers["vllm's pages"][1]
    assert "flash_append" not in answers["a picture"][1]


def test_windows_and_head_sizes_have_structures_of_their_own(
    answers: dict[str, tuple[float | None, str]],
) -> None:
    assert "sglang_triton_prefill_window" in answers["a window"][1]
    own = answers["a head size"][1].split(" + ")[-1]
    assert own == "trtllm_torch_flow_prefill_fp8q_fp8kv_d256"


def test_what_no_device_can_give_is_refused_with_its_reason(
    answers: dict[str, tuple[float | None, str]],
) -> None:
    assert answers["suspect"] == (
        None, "the source marks the row: suspect: above the device peak",
    )  # fmt: skip
    time, why = answers["no cache is so large"]
    assert time is None
    assert "no cache holds them" in why
    assert answers["in the cache"][0] is not None
    assert answers["no such stack"] == (
        None, "no kernel for attention_prefill of abacus_beads on a100-sxm-80g",
    )  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        "attention_prefill,vllm,vllm_flash_attn_fa3,bfloat16,bfloat16,8,16384,16384,40,4,64,0,yes,22813,",
        "attention_prefill,vllm,vllm_flash_attn_fa3,bfloat16,bfloat16,4,10240,10240,32,4,64,128,yes,448,",
        "attention_prefill,vllm,vllm_flash_attn_fa3,bfloat16,bfloat16,128,1024,1024,32,4,64,128,yes,1365,",
        "attention_prefill,vllm,vllm_flash_attn_fa3,bfloat16,bfloat16,8,16384,16384,16,4,256,0,yes,25412,",
        "attention_prefill,vllm,vllm_flash_attn_fa3,bfloat16,fp8,8,16384,16384,40,4,64,0,yes,20488,",
        "attention_prefill,vllm,vllm_flash_attn_fa3,bfloat16,fp8,4,10240,10240,32,4,64,128,yes,522,",
    ],
)  # fmt: skip
def test_flash_attention_3_takes_about_as_long_as_measured(row: str, tmp_path: Path) -> None:
    """Rows of aic-attention, which blocks of one size for all heads missed by up to 52 %."""
    path = tmp_path / "attention.csv"
    path.write_text(f"{HEAD}\nme,H100-SXM-80GB,{row}\n")
    (read,) = read_rows([path])
    answer = AttentionPredictor(presets()).predict(read)
    assert answer.time_us == pytest.approx(read.time_us, rel=0.14)
