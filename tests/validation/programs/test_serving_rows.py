"""Rows of serving, answered by loads: what is asked of the engine, and what is read of its load."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.serving import ServeSettings, parse_settings
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


def asked(*, decodes: bool) -> ServeSettings:
    words = command(ROW, "h200", 20, decodes=decodes)[1:]
    own = ("--machine=", "--json=")  # those of the command, not of its program
    return parse_settings([word for word in words if not word.startswith(own)])


def test_a_row_is_asked_for_as_its_client_sends_it_and_in_the_middle_of_its_output() -> None:
    (first,), (decoded,) = (asked(decodes=decodes).loads for decodes in (False, True))
    assert first.concurrency == decoded.concurrency == 5
    assert len(first.requests) == 3 * 5
    assert all(800 <= request.input_tokens <= 1000 for request in first.requests)
    assert len({request.output_tokens for request in first.requests}) > 5
    # The middle of 20 tokens after a longer prompt is the middle of the row's, nine tenths of it.
    (tokens,) = {request.input_tokens + request.output_tokens // 2 for request in decoded.requests}
    assert tokens == 0.9 * (1000 + 200 / 2)
    of_engine = asked(decodes=True).of_engine
    assert of_engine.tp == 2
    assert of_engine.arguments["max_num_seqs"] == 5
    assert of_engine.arguments["compilation_config"]["cudagraph_capture_sizes"] == [1, 2, 4, 5]


def test_a_token_takes_its_step_and_its_share_of_the_others_prefills() -> None:
    first = {
        "figures": {"itl_s": {"p50": 0.01}},
        # A tenth of a row's requests begin together.
        "requests": [{"ttft_s": 0.5}] * 5 + [{"ttft_s": 0.1}] * 5,
        "steps": [{"begin_s": 0.0, "end_s": 1.01}, *[{"begin_s": 0.0, "end_s": 0.01}] * 9],
    }
    result = estimates(ROW, first, {"figures": {"itl_s": {"p50": 0.02}}})
    # Ten requests take a second more than their steps: 0.1 s each, of four others, in 180 tokens.
    expected = {"ttft": 0.1 * 0.5 + 0.9 * 0.1, "tpot": 0.02 + 4 * 0.1 / 180}
    assert result == pytest.approx(expected)


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
