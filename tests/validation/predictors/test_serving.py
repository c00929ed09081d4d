"""Rows of serving: what is run for one, why nothing is, and what its loads say of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from kernbench.accuracy.rows import Category, Machines, Row, read_rows
from kernbench.serving import parse_settings
from validation.predictors import serving
from validation.predictors.registry import make_predictor
from validation.programs import Program, ProgramAnswer
from validation.programs.loops import serving as loads
from validation.sources.forms import FORMS, TTFT

HEAD = (
    "source,device,framework,model,precision,mode,isl,osl,concurrency_or_batch,tp,pp,"
    "attention_dp,moe_ep,ttft_s,tpot_s"
)
LINE = "me,H200-SXM-141GB,{framework},{model},{precision},aggregated,1000,200,5,2,{pp},1,1,0.2,0.02"
USUAL = {"framework": "vllm", "model": "meta-llama/Llama-3.1-70B", "precision": "fp8", "pp": 1}


def rows_of(tmp_path: Path, **other: object) -> list[Row]:
    path = tmp_path / "serving.csv"
    path.write_text(f"{HEAD}\n{LINE.format(**{**USUAL, **other})}\n")
    return read_rows([path], FORMS)


def test_a_line_has_a_row_of_the_first_token_and_one_of_a_further_one(tmp_path: Path) -> None:
    further, first = rows_of(tmp_path)
    assert {further.category, first.category} == {Category.SERVING}
    assert (further.op, further.time_us) == ("aggregated", pytest.approx(20_000))
    assert (first.op, first.time_us) == (TTFT, pytest.approx(200_000))
    assert further.where == first.where


def test_both_are_answered_by_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Program] = []

    def run(self: object, program: Program, machine: object) -> ProgramAnswer:
        runs.append(program)
        return ProgramAnswer(step_us=21_000.0, first_us=180_000.0)

    monkeypatch.setattr("validation.programs.runner.ProgramRunner._run", run)
    monkeypatch.setattr(Program, "check", lambda self: None)
    predictor = make_predictor(Category.SERVING, Machines())
    times = [predictor.predict(row).time_us for row in rows_of(tmp_path)]
    assert times == [21_000.0, 180_000.0]
    assert len(runs) == 1


def test_the_engine_is_set_up_as_the_rows_server(tmp_path: Path) -> None:
    program = serving.program_of(rows_of(tmp_path)[0])
    assert program.ranks == 2
    assert program.args[:4] == ("vllm", "1000", "200", "5")
    of_engine = parse_settings(["vllm", *program.args[4:], "--rate=1"]).of_engine
    assert (of_engine.tp, of_engine.quantization) == (2, "fp8")
    assert of_engine.arguments["max_num_seqs"] == 5
    assert of_engine.arguments["kv_cache_dtype"] == "fp8"
    assert of_engine.arguments["compilation_config"]["cudagraph_capture_sizes"] == [1, 2, 4, 5]
    # The longest request of the row, and of the loads.
    assert of_engine.max_model_len >= 1200


@pytest.mark.parametrize(
    ("other", "why_not"),
    [
        ({"framework": "trtllm"}, "trtllm is not run: of engines, vLLM is"),
        ({"pp": 2}, "vLLM split by pp is not run"),
        ({"model": "moonshotai/Kimi-K2.5"}, "moonshotai/Kimi-K2.5 is not described to vLLM"),
        ({"precision": "fp4"}, "vLLM's weights in fp4 are not described"),
    ],
)
def test_what_is_not_run_says_why(tmp_path: Path, other: dict[str, object], why_not: str) -> None:
    predictor = make_predictor(Category.SERVING, Machines())
    answers = [predictor.predict(row) for row in rows_of(tmp_path, **other)]
    assert [(answer.time_us, answer.why_not) for answer in answers] == [(None, why_not)] * 2


def test_a_model_that_does_not_fit_is_not_run(tmp_path: Path) -> None:
    (row, _) = rows_of(tmp_path)
    row = replace(row, device="H100-SXM-80GB", fields={**row.fields, "tp": "1"}, dtype="bf16")
    answer = make_predictor(Category.SERVING, Machines()).predict(row)
    assert "141 GB of weights" in answer.why_not


@pytest.mark.parametrize(("input_tokens", "clients"), [(1000, 5), (8192, 32)])
def test_requests_begin_together_and_then_one_by_one(input_tokens: int, clients: int) -> None:
    """By a scheduler that takes prompts first, as many tokens of them in a step as fit."""
    load = loads.spread_load(input_tokens, clients)
    assert load.concurrency == clients
    left, running, step, begun = list(load.requests), [], 0, []
    while left or running:
        while left and len(running) < clients:
            request = left.pop(0)
            begun.append((step, request))
            running.append([request.input_tokens, request.output_tokens])
        room = 8192
        for request in running:
            taken = min(room, request[0])
            room -= taken
            request[0] -= taken
            request[1] -= not request[0]
        running = [request for request in running if request[1] > 0]
        step += 1
    together, later = begun[:clients], [at for at, _ in begun[clients:]]
    assert {at for at, _ in together} == {0}
    assert len(later) == min(clients, 6)
    assert all(second - first >= 4 for first, second in pairwise(later))
    # All prompts that began together are done.
    assert later[0] > sum(request.input_tokens for _, request in together) / 8192
    assert all(0.8 * input_tokens <= request.input_tokens <= input_tokens for _, request in begun)


def test_tokens_are_in_the_middle_of_answers() -> None:
    load = loads.middle_load(1000, 200, 5)
    assert load.concurrency == len(load.requests) == 5
    # The middle of the tokens after a longer prompt is the middle of the row's, nine tenths of it.
    (tokens,) = {request.input_tokens + request.output_tokens // 2 for request in load.requests}
    assert tokens == 0.9 * (1000 + 200 / 2)


def test_a_token_takes_its_step_and_its_share_of_the_others_prefills() -> None:
    # Fifteen prompts take 1.5 s more than their steps: 0.1 s each, of four others, in 180 tokens.
    prefill_s = loads.prefill_s([1.51, *[0.01] * 9], 0.01, 15)
    assert loads.further_token_s(0.02, prefill_s, 5, 200) == pytest.approx(0.02 + 4 * 0.1 / 180)


def test_a_tenth_of_a_rows_first_tokens_is_of_requests_that_begin_together() -> None:
    waits_s = [0.5] * 5 + [0.1] * 10
    # Ten rounds of five clients, of which the first begins together.
    expected_s = fmean([0.5] * 5 + [0.1] * 45)
    assert loads.first_token_s(waits_s, 5) == pytest.approx(expected_s)
