"""Rows of serving, answered by loads: what is asked of the engine, and what is read of its load."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.serving import parse_settings
from validation.programs.serving_rows import ServingRow, command, estimates, read

ROW = ServingRow(
    id="one",
    device="H200-SXM-141GB",
    engine="vllm",
    model="meta-llama/Llama-3.1-70B",
    precision="fp8",
    tp=2,
    input_tokens=1000,
    output_tokens=200,
    concurrency=5,
    ttft_s=0.2,
    tpot_s=0.02,
)


def test_a_row_is_asked_for_as_a_closed_loop_of_two_requests_of_each_client() -> None:
    asked = command(ROW, "h200", 20)[1:]
    own = ("--machine=", "--json=")  # those of the command, not of its program
    settings = parse_settings([item for item in asked if not item.startswith(own)])
    (load,) = settings.loads
    assert load.concurrency == 5
    assert len(load.requests) == 10
    # The middle of 20 tokens after a longer prompt is the middle of 200 after the row's.
    (tokens,) = {request.input_tokens + request.output_tokens // 2 for request in load.requests}
    assert tokens == 1000 + 200 // 2
    assert settings.of_engine.tp == 2
    assert settings.of_engine.arguments["compilation_config"]["cudagraph_capture_sizes"] == [
        1, 2, 4, 5,
    ]  # fmt: skip


def test_a_token_takes_its_step_and_its_share_of_the_others_prefills() -> None:
    steps = [{"begin_s": 0.0, "end_s": 1.01}, *[{"begin_s": 0.0, "end_s": 0.01}] * 9]
    load = {
        "figures": {"itl_s": {"p50": 0.01}, "ttft_s": {"mean": 0.5}, "requests": 10},
        "requests": [{"input_tokens": 1000}],
        "steps": steps,
    }
    result = estimates(ROW, load)
    # Ten requests take a second more than their steps: 0.1 s each, of four others, in 200 tokens.
    assert result == pytest.approx({"ttft": 0.5, "tpot": 0.01 + 4 * 0.1 / 200})


def test_rows_of_other_splits_are_left_out(tmp_path: Path) -> None:
    head = (
        "source,device,framework,model,precision,mode,isl,osl,concurrency_or_batch,tp,pp,"
        "attention_dp,moe_ep,ttft_s,tpot_s,id\n"
    )
    row = "s,B200-SXM,vllm,m,fp8,aggregated,1024,128,8,4,{pp},1,1,0.1,0.01,{id}\n"
    (tmp_path / "rows.csv").write_text(
        head + row.format(pp=1, id="kept") + row.format(pp=2, id="pp")
    )
    assert [item.id for item in read(tmp_path / "rows.csv")] == ["kept"]
