"""Collective rows, answered by the schedules of the presets' libraries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import Row, read_rows
from validation.predictors.collectives import CollectivePredictor

HEADER = "device,op,dtype,n_ranks,n_nodes,bytes,time_us,impl,source"

# Medians of nccl-tests, in microseconds. Source: ai-dynamo/aiconfigurator, nccl_perf.
MEASURED = (
    "A100-SXM4-80GB,all_reduce,fp16,2,1,524288",
    "A100-SXM4-80GB,all_reduce,fp16,2,1,1048576",
)


def rows_of(tmp_path: Path, lines: Sequence[str]) -> list[Row]:
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([HEADER, *lines]) + "\n")
    return read_rows([file])


@pytest.mark.adr("0035-D3")
def test_the_jump_of_the_vendors_table_is_in_the_answers(tmp_path: Path) -> None:
    """A100, 2 ranks: 19.4 us at 512 KiB in LL, 40.8 us at 1 MiB in Simple, as NCCL chooses."""
    lines = [f"{MEASURED[0]},19.4,,aic-nccl", f"{MEASURED[1]},40.8,,aic-nccl"]
    predictor = CollectivePredictor(presets())
    answers = [predictor.predict(row) for row in rows_of(tmp_path, lines)]
    assert [answer.how for answer in answers] == ["ring/ll", "ring/simple"]
    for answer, time_us in zip(answers, (19.4, 40.8), strict=True):
        assert answer.time_us == pytest.approx(time_us, rel=0.08)


@pytest.mark.parametrize(
    ("line", "why_not"),
    [
        ("A100-SXM4-80GB,all_reduce,fp16,16,2,1024,9,,x", "links between this source's nodes"),
        ("NoSuch,all_reduce,fp16,2,1,1024,9,,x", "no machine lists the device 'NoSuch'"),
        ("A100-SXM4-80GB,all_reduce,fp12,2,1,1024,9,,x", "no item size for dtype fp12"),
        ("V100-SXM2-16GB,all_reduce,fp16,4,1,1024,9,,x", "v100 has no collective library"),
    ],
)
def test_a_row_without_an_answer_says_why(tmp_path: Path, line: str, why_not: str) -> None:
    (row,) = rows_of(tmp_path, [line])
    answer = CollectivePredictor(presets()).predict(row)
    assert answer.time_us is None
    assert why_not in answer.why_not


def test_a_serving_stacks_kernel_becomes_the_library_for_large_messages(tmp_path: Path) -> None:
    sizes = (4096, 1 << 20, 16 << 20)
    lines = [f"A100-SXM4-80GB,all_reduce_custom,bf16,8,1,{size},9,,x" for size in sizes]
    predictor = CollectivePredictor(presets())
    hows = [predictor.predict(row).how for row in rows_of(tmp_path, lines)]
    assert hows == ["one_shot/simple", "two_shot/simple", "ring/ll128"]


def test_one_node_in_words_and_a_launch_without_a_graph(tmp_path: Path) -> None:
    header = "source,device,op,dtype,n_ranks,n_nodes,bytes,time_us,impl\n"
    line = "aic-custom-ar-2,B200-SXM,all_reduce_custom,bfloat16,2,1 (4-GPU tray) or 1,1024,1,vllm "
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}{line}vLLM_custom_graph\n{line}vLLM_custom_eager\n")
    predictor = CollectivePredictor(presets())
    graph, eager = (predictor.predict(row).time_us or 0 for row in read_rows([path]))
    assert 0 < graph < eager == 20.8
