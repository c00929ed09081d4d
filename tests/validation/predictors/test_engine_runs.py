"""No predictor makes a time without a run of the engine."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import validation
from kernbench import accuracy
from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.predictor import OWN, Answer, Predictor
from kernbench.accuracy.rows.reference import Row
from kernbench.kernel_time import kernel_duration_ps, schedule_kernel
from kernbench.library_kernels import time_kernel
from kernbench.links import Network, exchange_ps
from tests.validation.predictors.answers import rows_of
from tests.validation.predictors.families.test_predictor import LLAMA, row
from validation.predictors.families.predictor import ProgramPredictor
from validation.predictors.registry import make_predictor
from validation.predictors.serving import ServingPredictor, program_of
from validation.programs import KeptAnswers, ProgramAnswer, ProgramFiles, ProgramRunner

ENGINE = (schedule_kernel, kernel_duration_ps, time_kernel, exchange_ps)
METHODS = ((Network, "run"), (ProgramRunner, "answer"))
"""What makes the time of a kernel, of a library's kernel, of a collective, and of a program."""
PACKAGES = (accuracy, validation)
DEFINED = Path(str(sys.modules[Answer.__module__].__file__))
"""Where answers are."""

GEMM = "device,op,dtype,m,n,k,time_us,source\n"
MEMBOUND = "device,op,dtype,rows,cols,time_us,source\n"
COLLECTIVE = "device,op,dtype,n_ranks,n_nodes,bytes,time_us,impl,note,source\n"
SPLIT = (
    "device,op,dtype,model,hidden,layers,heads,seq,batch,tokens,input_len,output_len,tp,pp,dp,"
    "time_us,tflops,tokens_per_s_per_dev,impl,source\n"
)
ATTENTION = (
    "source,device,op,framework,kernel,attn_dtype,kv_dtype,batch,q_len,kv_len,heads,kv_heads,"
    "head_dim,window,causal,time_us\n"
)
LATENT = (
    "source,device,op,framework,kernel,mla_dtype,kv_dtype,batch,q_len,kv_len,heads,tp_size,"
    "time_us\n"
)
EXPERTS = (
    "source,device,op,framework,kernel,dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
    "moe_tp_size,moe_ep_size,distribution,time_us\n"
)
SERVED = (
    "source,device,framework,model,precision,mode,isl,osl,concurrency_or_batch,tp,pp,"
    "attention_dp,moe_ep,ttft_s,tpot_s\n"
)
VLLM = "s,H200-SXM-141GB,vllm,meta-llama/Llama-3.1-70B,fp8,aggregated,1000,200,5,1,1,1,1,0.2,0.02"
NOTE = '"tokens/rank 256, hidden 4096, topk 8, experts 128; SMs 24"'
LAYER = "A100-SXM4-80GB,layer_prefill:{},fp16,x,64,1,2,16,1,,16,,{},1,1,9,,,,llmcompass-fig5ijkl"
OWN_ATTENTION = "device,op,dtype,batch,q_len,kv_len,heads,kv_heads,head_dim,time_us,impl\n"
ROWS = [
    (GEMM, "A100-SXM4-80GB,gemm,fp16,320,192,224,9,mine"),
    (GEMM, "MI210,gemm,fp16,320,192,224,9,mine"),
    (GEMM, "B200-SXM,gemm,bf16,320,192,224,9,mine"),
    (MEMBOUND, "A100-SXM4-80GB,add,fp32,1000,1000,9,mine"),
    (MEMBOUND, "A100-SXM4-80GB,softmax,fp32,1000,1000,9,neusight-vec"),
    (COLLECTIVE, "A100-SXM4-80GB,all_reduce,fp16,4,1,70000,9,NCCL,,mine"),
    (COLLECTIVE, "H100-SXM-80GB,all_reduce,fp16,16,2,70000,9,NCCL,,aic-deepep"),
    (COLLECTIVE, f"B200-SXM,moe_dispatch,fp8,8,1,,9,DeepEP normal,{NOTE},x"),
    (COLLECTIVE, f"B200-SXM,moe_dispatch,fp8,8,1,,9,DeepEP low-latency,{NOTE},x"),
    (COLLECTIVE, f"H100-SXM-80GB,moe_dispatch,fp8,16,2,,9,DeepEP normal,{NOTE},aic-deepep"),
    (COLLECTIVE, f"H100-SXM-80GB,moe_combine,bf16,16,2,,9,DeepEP low-latency,{NOTE},aic-deepep"),
    (COLLECTIVE, f"GB200-SXM,moe_alltoall_prepare,fp8,8,2,,9,NVLinkTwoSided,{NOTE},x"),
    (COLLECTIVE, f"GB200-SXM,moe_alltoall_dispatch,fp8,8,2,,9,NVLinkTwoSided,{NOTE},x"),
    (COLLECTIVE, f"GB200-SXM,moe_alltoall_combine,nvfp4,8,2,,9,NVLinkOneSided,{NOTE},x"),
    (SPLIT, "A100-SXM4-80GB,generate,fp16,x,64,2,2,,1,,16,4,1,1,1,9,,,,ft-gpt20b"),
    (SPLIT, "A100-SXM4-80GB,train_iteration,fp16,x,64,2,2,16,1,,,,1,1,1,9,,,,neusight-dist"),
    *((SPLIT, LAYER.format(name, 1)) for name in ("GeLU", "Q_mul_K", "total")),
    (SPLIT, LAYER.format("AllReduce_MHA", 2)),
    (OWN_ATTENTION, "A100-SXM4-80GB,forward,bf16,4,96,96,8,2,128,9,flash2"),
    (
        ATTENTION,
        "s,A100-SXM4-80GB,attention_prefill,sglang,flash_attention,bfloat16,bfloat16,4,96,96,8,2,128,0,yes,9",
    ),
    (LATENT, "s,H100-SXM-80GB,generation_mla,sglang,flash_attention,bfloat16,fp8,2,1,96,8,16,9"),
    (
        EXPERTS,
        "s,H200-SXM-141GB,fused_moe,sglang,sglang_fused_moe_triton,bfloat16,96,4096,1536,8,128,4,1,balanced,9",
    ),
]


Site = tuple[str, int]
"""The file of a package and the line on which it makes an answer with a time."""


def timing_sites() -> set[Site]:
    """Return the calls that make an answer with a time."""
    return {
        (str(path), line)
        for package in PACKAGES
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        if path != DEFINED
        for line in timing_lines(path.read_text())
    }


def timing_lines(text: str) -> list[int]:
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [item.lineno for item in calls if _makes_time(item)]


def _makes_time(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name in ("of_layers", "Answer.composed"):
        return True
    values = [
        *call.args[:1],
        *(keyword.value for keyword in call.keywords if keyword.arg == "time_us"),
    ]
    return name == "Answer" and any(ast.unparse(item) != "None" for item in values)


class Watch:
    """Where answers with times are made, and how often the engine is asked meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.sites: set[Site] = set()
        modules = [
            module
            for name, module in sys.modules.items()
            if name.startswith(("kernbench", "validation"))
        ]
        for function in ENGINE:
            for module in modules:
                for name, value in list(vars(module).items()):
                    if value is function:
                        patch.setattr(module, name, self._counted(function))
        for kind, name in METHODS:
            patch.setattr(kind, name, self._counted(getattr(kind, name)))
        result = Answer.__init__

        def make(answer: Answer, *args: Any, **fields: Any) -> None:
            result(answer, *args, **fields)
            if answer.time_us is not None or answer.composed_us is not None:
                frame = sys._getframe(1)
                while frame.f_code.co_filename == str(DEFINED) and frame.f_back is not None:
                    frame = frame.f_back
                self.sites.add((frame.f_code.co_filename, frame.f_lineno))

        patch.setattr(Answer, "__init__", make)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **fields: Any) -> Any:
            self.asked += 1
            return function(*args, **fields)

        return counted


def is_honest(answer: Answer, asked: int) -> bool:
    """Return whether a time is of a run of the engine, or is said to be of none."""
    if answer.time_us is None:
        return answer.composed_us is not None and bool(answer.why_not) and answer.ran is None
    return asked > 0 and answer.composed_us is None and answer.ran is not None


def programs(tmp_path: Path) -> Iterator[tuple[Predictor, Row]]:
    """Yield rows of programs, with a predictor that has their answers where they were run."""
    files = ProgramFiles(kept=tmp_path / "kept.jsonl", runs=())
    known = row(tmp_path, **LLAMA)
    predictor = ProgramPredictor(presets(), files)
    asked = predictor.asked(known)
    name = predictor.machine_of(asked, known).name
    KeptAnswers(files).keep(asked.program, name, ProgramAnswer(step_us=9.0))
    yield ProgramPredictor(presets(), files), known
    further, _ = rows_of(tmp_path, SERVED, VLLM)
    name = presets().machine_of(further.device, 1).name
    KeptAnswers(files).keep(program_of(further), name, ProgramAnswer(step_us=9.0))
    yield ServingPredictor(presets(), files), further


@pytest.mark.adr("0235-D1")
def test_every_time_is_of_a_run_or_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a row here for every call that makes a time."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "loops" not in module.name:
                import_module(module.name)
    rows = [row for head, line in ROWS for row in rows_of(tmp_path, head, line)]
    cases = [(make_predictor(row.category), row) for row in rows]
    firsts = {row.category: row for row in reversed(rows) if row.category in OWN.by_category}
    cases += [(OWN.make(item.category), item) for item in (*firsts.values(), *rows[:3])]
    cases += programs(tmp_path)
    watch = Watch(monkeypatch)
    for predictor, asked in cases:
        before = watch.asked
        answer = predictor.predict(asked)
        assert is_honest(answer, watch.asked - before), (str(asked), answer)
    assert timing_sites() <= watch.sites, "add a row for each"


@pytest.mark.adr("0235-D1")
def test_a_time_from_a_formula_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (asked,) = rows_of(tmp_path, *ROWS[0])
    watch = Watch(monkeypatch)
    answer = Answer(asked.integer("m") / 7.0)
    assert not is_honest(answer, watch.asked)
    assert {file for file, _ in watch.sites} == {__file__}
    assert not is_honest(Answer(1.0, composed_us=1.0), 1)
    assert is_honest(Answer(None, "nothing was run", composed_us=1.0), 0)
    text = "def predict(row):\n    why = Answer(None)\n    return Answer(time_us=row.m)\n"
    assert timing_lines(text) == [3]
