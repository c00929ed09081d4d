"""Sweeps of splits and goals, from rows whose answers are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.predictor import Answer, is_apart
from kernbench.accuracy.rows.reference import read_rows
from kernbench.accuracy.score import Scored
from validation.scores.goals import Goal, goals_of
from validation.scores.report import to_json
from validation.scores.sweeps import Sweeps, sweeps_of

TP = "device,op,dtype,model,batch,tp,pp,dp,time_us,tflops,source\n"
GEMM = "device,op,dtype,m,n,k,bytes,time_us,source\n"


def scored(tmp_path: Path, header: str, lines: dict[str, float | None]) -> list[Scored]:
    path = tmp_path / "rows.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return [
        Scored(row, Answer(modeled, "" if modeled else "unknown"))
        for row, modeled in zip(read_rows([path]), lines.values(), strict=True)
    ]


def split(tp: int, measured: float, batch: int = 1, pp: int = 1) -> str:
    return f"A100-SXM4-80GB,generate,fp16,m,{batch},{tp},{pp},,{measured},,mine"


def found(tmp_path: Path, lines: dict[str, float | None]) -> Sweeps:
    sweeps = sweeps_of(scored(tmp_path, TP, lines))
    assert sweeps is not None
    return sweeps


def rights(sweeps: Sweeps) -> list[tuple[int, int, int]]:
    return [
        (question.sweeps, question.right, question.naive_right) for question in sweeps.questions
    ]


@pytest.mark.adr("0071-D1")
def test_scaling_efficiency_is_compared_with_the_smallest_split(tmp_path: Path) -> None:
    """Measured 100 / (4 * 40) = 62.5 %, modeled 100 / (4 * 50) = 50 %; 80 % both times at 2."""
    sweeps = found(tmp_path, {split(4, 40): 50, split(1, 100): 100, split(2, 62.5): 62.5})
    assert sweeps.splits == 2
    assert sweeps.scaling_points == pytest.approx(12.5 / 2)
    assert sweeps.scaling_worst == pytest.approx(12.5)


@pytest.mark.adr("0071-D2")
def test_the_model_is_right_where_it_picks_what_was_fastest(tmp_path: Path) -> None:
    """Four devices are slower than two: the naive rule always takes them."""
    right = {split(1, 100): 90.0, split(2, 60): 55.0, split(4, 80): 70.0}
    wrong = {split(1, 100, 8): 90.0, split(2, 60, 8): 75.0, split(4, 80, 8): 70.0}
    fastest, cheapest, widest = rights(found(tmp_path, {**right, **wrong}))
    assert fastest == (2, 1, 0)
    assert cheapest == (2, 2, 2)
    # One device does 83 % at two, measured; modeled 82 % and 60 %.
    assert widest == (2, 2, 0)


@pytest.mark.adr("0071-D2")
def test_a_choice_as_good_as_the_best_is_right(tmp_path: Path) -> None:
    near: dict[str, float | None] = {split(2, 60): 60.0, split(4, 61): 59.0}
    far: dict[str, float | None] = {split(2, 60, 8): 60.0, split(4, 63, 8): 59.0}
    assert rights(found(tmp_path, near))[0][1:] == (1, 1)
    assert rights(found(tmp_path, far))[0][1:] == (0, 0)


@pytest.mark.adr("0071-D1")
def test_a_rate_per_device_is_device_time(tmp_path: Path) -> None:
    line = "A100-SXM4-80GB,train_throughput,bf16,m,8,{tp},1,,,{tflops},mine"
    rates: dict[str, float | None] = {
        line.format(tp=1, tflops=100): 1e4,
        line.format(tp=4, tflops=80): 1e6 / 80,
    }
    sweeps = found(tmp_path, rates)
    assert sweeps.scaling_points == pytest.approx(0)


def test_rows_of_one_size_and_rows_without_an_answer_make_no_sweep(tmp_path: Path) -> None:
    assert sweeps_of(scored(tmp_path, TP, {split(1, 100): 90.0, split(2, 60): None})) is None
    assert sweeps_of(scored(tmp_path, TP, {split(2, 60): 60.0, split(1, 70, pp=2): 60.0})) is None


def gemm_lines(device: str, source: str, off: float, count: int = 40) -> dict[str, float | None]:
    return {
        f"{device},gemm,bf16,64,{64 * n},1024,1,10,{source}": 10 * (1 + off)
        for n in range(1, count + 1)
    }


@pytest.mark.adr("0071-D3")
def test_goals_say_what_was_reached_and_are_of_rows_kept_apart(tmp_path: Path) -> None:
    lines = {
        **gemm_lines("A100-SXM4-80GB", "aic-gemm", 0.05),
        **gemm_lines("H100-SXM-80GB", "aic-gemm", 0.055),
        **gemm_lines("H100-80GB", "vidur-mlp", -0.1),
    }
    rows = scored(tmp_path, GEMM, lines)
    own, borrowed, other = goals_of(rows, None, presets())
    apart = [row for row in rows if row.row.device.startswith("A100") and is_apart(row.row)]
    assert 0 < len(apart) < 40
    assert own == Goal(
        name="GEMM of A100-SXM4-80GB, rows never fitted to",
        rows=len(apart),
        limit="MAPE <= 5.5 %, median <= 4 %",
        reached="5.0 %, 5.0 %",
        met=False,
    )
    assert (borrowed.rows, borrowed.limit, borrowed.met) == (40, "MAPE <= 6 %", True)
    assert (other.reached, other.met) == ("10.0 %", False)


@pytest.mark.adr("0071-D3")
@pytest.mark.adr("0128-D3")
def test_goals_of_library_kernels_are_of_rows_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "attention.csv"
    head = (
        "source,device,op,framework,kernel,attn_dtype,kv_dtype,batch,q_len,kv_len,heads,kv_heads,"
        "head_dim,window,causal,time_us\n"
    )
    lines = [
        f"me,H20,attention_prefill,x,y,bfloat16,bfloat16,1,{n},{n},8,8,128,0,yes,100\n"
        for n in range(64, 84)
    ]
    path.write_text(head + "".join(lines))
    rows = read_rows([path])
    result = [Scored(row, Answer(105.0 if is_apart(row) else 300.0)) for row in rows]
    (goal,) = goals_of(result, None, presets())
    assert goal.name == "attention prefill, rows never fitted to"
    assert (goal.rows, goal.reached, goal.met) == (sum(map(is_apart, rows)), "5.0 %", True)
    assert 0 < goal.rows < len(rows)


def test_goals_of_collectives_are_by_kind_and_by_what_joins_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "collectives.csv"
    path.write_text(
        "source,device,op,dtype,n_ranks,n_nodes,network,bytes,time_us,impl,note\n"
        "me,A100,all_reduce,fp16,16,2,,64,100,NCCL,\n"
        "me,A100,all_gather,fp16,8,1,,64,100,NCCL,\n"
        "me,L40S,all_gather,fp16,8,1,,64,100,NCCL,\n"
        'me,H100,moe_dispatch,fp8,16,2,RDMA,,100,DeepEP,"tokens/rank 1, hidden 2, topk 3"\n'
        'me,GB200,moe_alltoall_combine,fp8,16,4,NVLink domain,,100,x,"tokens/rank 1"\n'
        "me,B200,all_reduce_custom,fp16,4,1 (4-GPU tray) or 1,,64,100,x,\n"
    )
    errors = (120.0, 105.0, 111.0, 90.0, 110.0, 107.0)
    result = [
        Scored(row, Answer(time_us)) for row, time_us in zip(read_rows([path]), errors, strict=True)
    ]
    goals = goals_of(result, None, presets())
    said = {goal.name: goal for goal in goals if "never fitted" not in goal.name}
    assert {name: (value.rows, value.reached, value.met) for name, value in said.items()} == {
        "all-reduce between nodes": (1, "20.0 %", False),
        "exchanges of experts' rows between nodes": (1, "10.0 %", True),
        "exchanges of experts' rows in a rack (NVL72)": (1, "10.0 %", True),
        "all collectives in a node": (2, "6.0 %", True),
        "collectives of L40S and over PCIe": (1, "11.0 %", True),
    }


def test_sweeps_and_goals_are_in_the_json_beside_the_documented_keys(tmp_path: Path) -> None:
    json = to_json(scored(tmp_path, TP, {split(1, 100): 90.0, split(2, 60): 50.0}))
    assert {"categories", "groups", "goals", "tp_sweeps", "programs"} <= set(json)
    assert [item["met"] for item in json["goals"]] == [False, False, True, True, True]
    assert json["tp_sweeps"]["questions"][0]["name"] == "fastest split"
