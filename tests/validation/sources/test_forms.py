"""Every form of file is read as it is, and what has no time is counted with its reason."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.reference import read_rows
from kernbench.accuracy.score import answer_rows
from kernbench.errors import UsageError

HEADS = {
    "attention.csv": (
        "source,device,op,framework,kernel,attn_dtype,kv_dtype,batch,q_len,kv_len,heads,kv_heads,"
        "head_dim,window,causal,time_us",
        "me,A100-SXM4-80GB,attention_prefill,x,y,bfloat16,bfloat16,1,64,64,8,8,128,0,yes,14.0",
        (Category.ATTENTION, "attention_prefill", "bfloat16", 14.0),
    ),
    "more.csv": (
        "source,device,impl,pass,dtype,batch,heads,kv_heads,q_len,kv_len,head_dim,causal,time_us",
        "me,H20,Fav2,forward,bf16,2,32,32,2048,2048,64,no,840",
        (Category.ATTENTION, "forward", "bf16", 840.0),
    ),
    "amd.csv": (
        "source,device,dtype,m,n,k,batch,time_us,impl",
        "me,MI355X,fp4,1,512,4096,1,5.4,flat",
        (Category.GEMM, "gemm", "fp4", 5.4),
    ),
    "moe.csv": (
        "source,device,kernel,dtype,num_tokens,hidden_size,inter_size,topk,num_experts,time_us",
        "me,MI308X,ck,bf16,2048,2048,192,8,128,275.4",
        (Category.MOE, "fused_moe", "bf16", 275.4),
    ),
    "mla.csv": (
        "source,device,op,kernel,mla_dtype,kv_dtype,batch,q_len,kv_len,heads,tp_size,time_us",
        "me,H100,context_mla,default,bfloat16,fp8,1,16,16,32,2,15.5",
        (Category.MLA, "context_mla", "bfloat16", 15.5),
    ),
    "linear.csv": (
        "source,device,op,kernel,phase,batch_size,seq_len,num_tokens,d_model,d_conv,time_us",
        "me,H100,gdn,causal_conv1d_fn,context,1,64,64,1024,4,11.5",
        (Category.LINEAR_ATTENTION, "gdn", "bfloat16", 11.5),
    ),
    "quantize.csv": (
        "source,device,op,kernel,quant_dtype,rows,cols,time_us",
        "me,H100,computescale,torch_ops,fp8,8192,2048,14.8",
        (Category.MEMBOUND, "computescale", "fp8", 14.8),
    ),
    "programs.csv": (
        "source,device,program,dtype,tp,pp,metric,value,unit,derived_step_time_s",
        "me,A100,python train.py,bf16,1,1,time_per_step,300,ms,0.3",
        (Category.PROGRAMS, "python train.py", "bf16", 300_000.0),
    ),
    "timm.csv": (
        "source,device,dtype,phase,model,img_size,gmacs,step_time_ms",
        "me,RTX 3090,amp,infer,resnet50,224,4.1,34.1",
        (Category.PROGRAMS, "infer", "amp", 34_100.0),
    ),
    "serving.csv": (
        "source,device,model,precision,mode,isl,osl,tp,pp,ttft_s,tpot_s",
        "me,B200,K2,fp4,aggregated,1024,1024,8,1,0.07,0.007",
        (Category.SERVING, "aggregated", "fp4", 7000.0),
    ),
}


def written(tmp_path: Path, name: str, *lines: str) -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.adr("0128-D4")
@pytest.mark.parametrize("name", HEADS)
def test_a_form_is_known_by_its_columns(tmp_path: Path, name: str) -> None:
    head, line, (category, op, dtype, time_us) = HEADS[name]
    (row,) = read_rows([written(tmp_path, name, head, line)])
    assert (row.category, row.op, row.dtype) == (category, op, dtype)
    assert row.time_us == pytest.approx(time_us)


@pytest.mark.adr("0128-D4")
@pytest.mark.parametrize(
    ("value", "unit", "time_us", "per"),
    [
        ("300", "ms", 300_000.0, ""),
        ("14.5", "ms/token", 14_500.0, "token"),
        ("2000", "tokens/s", 500.0, "token"),
        ("40", "img/s", 25_000.0, "img"),
    ],
)
def test_a_program_names_its_own_unit(
    tmp_path: Path, value: str, unit: str, time_us: float, per: str
) -> None:
    head, line, _ = HEADS["programs.csv"]
    line = line.replace("300,ms,0.3", f"{value},{unit},")
    (row,) = read_rows([written(tmp_path, "programs.csv", head, line)])
    assert row.time_us == pytest.approx(time_us)
    assert row.per == per


@pytest.mark.adr("0128-D4")
def test_a_row_without_a_time_is_counted_with_its_reason(tmp_path: Path) -> None:
    head, line, _ = HEADS["programs.csv"]
    line = line.replace("time_per_step,300,ms,0.3", "speedup,1.5,x,")
    (scored,) = answer_rows(read_rows([written(tmp_path, "programs.csv", head, line)]))
    assert scored.answer.time_us is None
    assert scored.answer.why_not == "speedup in x is no time"


def test_a_time_that_is_no_number_is_refused(tmp_path: Path) -> None:
    head, line, _ = HEADS["attention.csv"]
    path = written(tmp_path, "attention.csv", head, line.replace("14.0", "fast"))
    with pytest.raises(UsageError, match=r"attention.csv:2: time_us must be a number above 0"):
        read_rows([path])
