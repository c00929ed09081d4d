"""GEMM rows that a vendor's library answers: which kernel, and what surrounds it."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import Row, read_rows
from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import Product, product_kernels, time_kernel
from validation.predictors.gemm import GemmPredictor
from validation.predictors.library_rows import NotModeledError

PREDICTOR = GemmPredictor(presets())
STACK = "source,device,op,framework,kernel,dtype,m,n,k,time_us"
PLAIN = "source,device,op,dtype,m,n,k,impl,time_us"
AITER = "source,device,dtype,m,n,k,batch,time_us,impl"


def row_of(tmp_path: Path, header: str, line: str) -> Row:
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\n{line}\n")
    (row,) = read_rows([path])
    return row


def test_the_time_is_that_of_the_fastest_choice(tmp_path: Path) -> None:
    line = "aic-gemm-2,B200-SXM,gemm,trtllm,torch_flow,bfloat16,8,256,16384,1"
    measured = PREDICTOR.measured(row_of(tmp_path, STACK, line))
    library = load_library("sm100")
    times = [
        sum(
            time_kernel(item, measured.machine.sip, library.constants(item.name)).total_us
            for item in choice
        )
        for choice in measured.choices
    ]
    assert measured.time_us() == pytest.approx(min(times))
    # Few results of a long K: cutting K is the fastest.
    assert len(measured.choices[times.index(min(times))]) == 2


@pytest.mark.adr("0128-D6")
@pytest.mark.parametrize(
    ("device", "preset", "dtype"),
    [("B200-SXM", "b200", "bf16"), ("L40S", "l40s", "fp16"), ("MI355X", "mi355x", "bf16")],
)
def test_a_row_of_torch_takes_what_a_product_of_a_program_takes(
    tmp_path: Path, device: str, preset: str, dtype: str
) -> None:
    line = f"x,{device},gemm,{dtype},4096,8192,2048,torch,1"
    answer = PREDICTOR.predict(row_of(tmp_path, PLAIN, line))
    machine = load_machine(preset)
    name = {"bf16": "bfloat16", "fp16": "float16"}[dtype]
    product = Product(m=4096, n=8192, k=2048, dtype=name, part_bytes=2)
    library = load_library(machine.spec.kernel_library or "")
    # A row is one launch after a wait, as the first product of a program is.
    assert answer.time_us == pytest.approx(
        product_kernels(product, machine.sip, library).total_us, rel=0.01
    )


def test_a_row_between_two_events_has_the_event_of_its_machine(tmp_path: Path) -> None:
    line = "{},A100,gemm,fp16,512,512,512,cuBLAS via torch,1"
    timed, alone = (
        PREDICTOR.predict(row_of(tmp_path, PLAIN, line.format(source))).time_us or 0.0
        for source in ("triton-tutorial-03", "mine")
    )
    assert timed - alone == pytest.approx(float(load_machine("a100-sxm-40g").sip.event_us))


@pytest.mark.parametrize(
    ("header", "line", "kernel"),
    [
        (STACK, "aic-gemm-2,H200-SXM-141GB,gemm,trtllm,torch_flow,fp8,64,512,512,1", "blas_fp8"),
        (PLAIN, "aic-gemm,L40S,gemm,bf16,64,512,512,vendor BLAS,1", "blas_half"),
        (PLAIN, "mamf-table,B300-SXM,gemm,bf16,64,512,512,torch,1", "blas_half"),
        (AITER, "aiter-gemm-2,MI355X,fp4,1,512,4096,1,5,_ZN5aiter41f4", "aiter_fp4_asm"),
        (PLAIN, "aic-gemm,H200-SXM-141GB,gemm,bf16,64,512,512,vendor BLAS,1", "blas_half"),
        (STACK, "aic-gemm-2,B200-SXM,gemm,vllm,vllm_default,bfloat16,64,512,512,1", "blas_half"),
        (PLAIN, "x,A100,gemm,fp16,64,512,512,Triton tutorial kernel,1", " stages"),
    ],
)
def test_stacks_and_named_architectures_are_answered_by_the_library(
    tmp_path: Path, header: str, line: str, kernel: str
) -> None:
    answer = PREDICTOR.predict(row_of(tmp_path, header, line))
    assert answer.time_us is not None
    assert kernel in answer.how


@pytest.mark.adr("0128-D6")
@pytest.mark.parametrize(
    ("stack", "dtype", "kernel"),
    [
        ("vllm,CutlassFP8ScaledMMLinearKernel", "fp8", "cutlass_fp8"),
        ("sglang,sglang_sgl_kernel_fp8_scaled_mm", "fp8", "cutlass_fp8"),
        ("sglang,sglang_deepgemm_gemm_nt_f8f8bf16", "fp8_block", "blocks_fp8"),
        ("trtllm,torch_flow", "fp8_static", "blas_fp8"),
        ("vllm,NobodysKernel", "nvfp4", "blas_fp4"),
    ],
)
def test_a_row_of_a_stack_is_answered_by_what_its_programs_launch(
    tmp_path: Path, stack: str, dtype: str, kernel: str
) -> None:
    line = f"aic-gemm-2,B200-SXM,gemm,{stack},{dtype},64,512,512,1"
    answer = PREDICTOR.predict(row_of(tmp_path, STACK, line))
    quantize, product = answer.how.split(" + ")[:2]
    assert quantize.startswith("quantize_")
    assert product == kernel


def test_what_no_library_has_says_so(tmp_path: Path) -> None:
    line = "aic-gemm-2,A100-SXM4-80GB,gemm,vllm,x,nvfp4,64,512,512,1"
    row = row_of(tmp_path, STACK, line)
    assert PREDICTOR.predict(row).why_not == "sm80 has no products blas_fp4"
    with pytest.raises(NotModeledError):
        PREDICTOR.measured(row)


def test_a_stack_without_a_graph_takes_its_hosts_time_at_least(tmp_path: Path) -> None:
    kernel = "DeepGemmFp8BlockScaledMMKernel"
    line = f"aic-gemm-2,H200-SXM-141GB,gemm,vllm,{kernel},fp8_block,8,512,512,1"
    row = row_of(tmp_path, STACK, line)
    assert PREDICTOR.predict(row).time_us == 90
    big = row_of(tmp_path, STACK, line.replace("8,512,512,1", "32768,8192,8192,1"))
    assert (PREDICTOR.predict(big).time_us or 0) > 1000


def test_a_rule_that_chooses_badly_is_followed(tmp_path: Path) -> None:
    line = "aic-gemm-2,H200-SXM-141GB,gemm,{},{},fp8,225,256,12288,1"
    stack, blas = (
        PREDICTOR.measured(row_of(tmp_path, STACK, line.format(*name)))
        for name in (("vllm", "CutlassFP8ScaledMMLinearKernel"), ("trtllm", "torch_flow"))
    )
    # Four tiles of 128 x 128 go through all of K where BLAS cuts it.
    assert [item.tiles[0].count for (item,) in stack.choices] == [4]
    assert len(blas.choices) > 10
