"""Rows of serving: what is run for one, why nothing is, and what its loads say of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from kernbench.accuracy.rows import Category, Machines, Row, read_rows
from kernbench.plans import model_of
from kernbench.serving import Output, ServedRequest, State, parse_settings
from kernbench.serving.models import folder_of
from validation.predictors import serving
from validation.predictors.registry import make_predictor
from validation.programs import Program, ProgramAnswer, ProgramError
from validation.programs.loops import serving as loads
from validation.sources.forms import FORMS, TTFT

HEAD = (
    "source,device,framework,model,precision,mode,isl,osl,concurrency_or_batch,tp,pp,"
    "attention_dp,moe_ep,ttft_s,tpot_s"
)
LINE = "me,H200-SXM-141GB,{framework},{model},{precision},aggregated,1000,200,5,2,{pp},1,1,0.2,0.02"
USUAL = {"framework": "vllm", "model": "meta-llama/Llama-3.1-70B", "precision": "fp8", "pp": 1}


class PromptEngine:
    """An engine that takes as much of prompts as it has room for, beside a token of all others."""

    name, longest, vocabulary = "ours", 8192, 32000

    def __init__(self, most: int = 64, room: int = 1 << 30) -> None:
        self.now_s, self._most, self._room = 0.0, most, room
        self._waiting: list[list[int]] = []
        self._running: list[list[int]] = []

    def add(self, number: int, prompt: Sequence[int], output_tokens: int) -> None:
        self._waiting.append([number, len(prompt), output_tokens])

    def step(self) -> list[Output]:
        taken = self._waiting[: self._most - len(self._running)]
        del self._waiting[: len(taken)]
        self._running += taken
        room = self._room - sum(not tokens for _, tokens, _ in self._running)
        self.now_s += 1e-3
        for request in self._running:
            tokens = min(room, request[1])
            room -= tokens
            request[1] -= tokens
            self.now_s += 1e-5 * tokens
        outputs = []
        for request in self._running:
            if request[1]:
                continue
            request[2] -= 1
            outputs.append(Output(request[0], 1, not request[2], self.now_s))
        self._seen = State(len(self._running), len(self._waiting), 0.0)
        self._running = [request for request in self._running if request[2]]
        return outputs

    def is_idle(self) -> bool:
        return not (self._waiting or self._running)

    def state(self) -> State:
        return self._seen

    def forget(self) -> None:
        """Hold nothing."""


def rows_of(tmp_path: Path, **other: object) -> list[Row]:
    path = tmp_path / "serving.csv"
    path.write_text(f"{HEAD}\n{LINE.format(**{**USUAL, **other})}\n")
    return read_rows([path], FORMS)


@pytest.mark.adr("0292-D3")
def test_a_line_has_a_row_of_the_first_token_and_one_of_a_further_one(tmp_path: Path) -> None:
    further, first = rows_of(tmp_path)
    assert {further.category, first.category} == {Category.SERVING}
    assert (further.op, first.op) == ("aggregated", TTFT)
    assert [further.time_us, first.time_us] == pytest.approx([20_000, 200_000])
    assert further.where == first.where


@pytest.mark.adr("0292-D1")
@pytest.mark.adr("0304-D1")
def test_both_are_answered_by_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Program] = []

    def run(self: object, program: Program, machine: object) -> ProgramAnswer:
        runs.append(program)
        return ProgramAnswer(step_us=21_000.0, first_us=180_000.0)

    monkeypatch.setattr("validation.programs.runner.ProgramRunner._run", run)
    monkeypatch.setattr(Program, "check", lambda self: None)
    predictor = make_predictor(Category.SERVING, Machines())
    times = [predictor.predict(row).time_us for row in rows_of(tmp_path)]
    # Nine requests of a client in ten come when the engine has planned its next step.
    assert times == [21_000.0, pytest.approx(180_000.0 + 0.9 * 21_000.0)]
    assert len(runs) == 1


def test_the_engine_is_set_up_as_the_rows_server(tmp_path: Path) -> None:
    row = rows_of(tmp_path)[0]
    program = serving.program_of(row)
    assert program.ranks == 2
    assert program.args[:4] == ("vllm", "1000", "200", "5")
    of_engine = parse_settings(["vllm", *program.args[4:], "--rate=1"]).of_engine
    assert (of_engine.tp, of_engine.quantization) == (2, "fp8")
    assert of_engine.arguments["max_num_seqs"] == 5
    assert of_engine.arguments["kv_cache_dtype"] == "fp8"
    assert of_engine.arguments["compilation_config"]["cudagraph_capture_sizes"] == [1, 2, 4, 5]
    # Rows of H100 wait for places in the cache from half as many tokens on.
    of_h100 = serving.program_of(replace(row, device="H100-SXM-80GB"))
    assert '--engine-arg=kv_cache_dtype="auto"' in of_h100.args
    # The longest request of the row, and of the loads.
    assert of_engine.max_model_len >= 1200


@pytest.mark.adr("0292-D1")
@pytest.mark.parametrize(
    ("other", "why_not"),
    [
        ({"framework": "trtllm"}, "trtllm is not run: of engines, vLLM is"),
        ({"pp": 2}, "vLLM split by pp is not run"),
        ({"model": "openai/gpt-oss-120b"}, "openai/gpt-oss-120b is not described to vLLM"),
        ({"precision": "fp4"}, "vLLM's weights in fp4 are not described"),
    ],
)
def test_what_is_not_run_says_why(tmp_path: Path, other: dict[str, object], why_not: str) -> None:
    predictor = make_predictor(Category.SERVING, Machines())
    answers = [predictor.predict(row) for row in rows_of(tmp_path, **other)]
    assert [(answer.time_us, answer.why_not) for answer in answers] == [(None, why_not)] * 2


def test_experts_are_split_by_tensors_or_whole_over_the_same_devices(tmp_path: Path) -> None:
    row = rows_of(tmp_path, model="Qwen/Qwen3-235B-A22B-FP8")[0]

    def of_engine(**fields: str) -> Mapping[str, Any]:
        program = serving.program_of(replace(row, fields={**row.fields, **fields}))
        return parse_settings(["vllm", *program.args[4:], "--rate=1"]).of_engine.arguments

    assert "enable_expert_parallel" not in of_engine(moe_tp="2", moe_ep="1")
    assert of_engine(moe_tp="1", moe_ep="2")["enable_expert_parallel"] is True
    assert of_engine()["hf_overrides"]["quantization_config"]["weight_block_size"] == [128, 128]
    with pytest.raises(ProgramError, match="split by attention_dp is not run"):
        of_engine(moe_tp="4", moe_ep="1")
    with pytest.raises(ProgramError, match="split by attention_dp and moe_ep is not run"):
        of_engine(tp="1", moe_tp="1", moe_ep="4")


@pytest.mark.parametrize(("name", "served"), serving.MODELS.items())
def test_served_models_are_described_to_the_engine(
    tmp_path: Path, name: str, served: Mapping[str, str]
) -> None:
    config = json.loads((folder_of(served["model"], tmp_path) / "config.json").read_text())
    assert config["num_hidden_layers"] == model_of(served["model"]).layers
    assert ("n_routed_experts" in config) == name.startswith("moonshotai")


@pytest.mark.adr("0292-D1")
def test_attention_of_flashinfer_is_not_run_as_another(tmp_path: Path) -> None:
    predictor = make_predictor(Category.SERVING, Machines())
    answer = predictor.predict(replace(rows_of(tmp_path)[0], device="B200-SXM"))
    assert answer.why_not == "vLLM's attention on B200-SXM, FlashInfer's, is not run"


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
    left, step = list(load.requests), 0
    begun: list[tuple[int, ServedRequest]] = []
    running: list[list[int]] = []
    while left or running:
        while left and len(running) < clients:
            begun.append((step, left.pop(0)))
            running.append([begun[-1][1].input_tokens, begun[-1][1].output_tokens])
        room = 8192
        for tokens in running:
            taken = min(room, tokens[0])
            room -= taken
            tokens[0] -= taken
            tokens[1] -= not tokens[0]
        running = [tokens for tokens in running if tokens[1] > 0]
        step += 1
    together, later = begun[:clients], [at for at, _ in begun[clients:]]
    assert {at for at, _ in together} == {0}
    assert len(later) == min(clients, 6)
    assert all(second - first >= 4 for first, second in pairwise(later))
    # All prompts that began together are done.
    assert later[0] > sum(request.input_tokens for _, request in together) / 8192
    assert all(0.8 * input_tokens <= request.input_tokens <= input_tokens for _, request in begun)


@pytest.mark.adr("0292-D2")
@pytest.mark.parametrize(("input_tokens", "clients"), [(1000, 5), (8192, 64)])
def test_tokens_are_at_all_places_of_answers(input_tokens: int, clients: int) -> None:
    load = loads.middle_load(input_tokens, 1000, clients)
    assert load.concurrency == len(load.requests) == clients
    lengths = [request.input_tokens + request.output_tokens - 8 for request in load.requests]
    # Prompts and what is answered, on average; none is shorter or longer than the row's.
    assert fmean(lengths) == pytest.approx(0.9 * (input_tokens + 1000 / 2), rel=1e-3)
    assert 0.8 * input_tokens <= min(lengths) < max(lengths) <= input_tokens + 900
    # All make their last tokens together.
    engine = PromptEngine(room=8192)
    for request in load.requests:
        engine.add(request.number, [0] * request.input_tokens, request.output_tokens)
    made = []
    while not engine.is_idle():
        made.append(len(engine.step()))
    assert made[-16:] == [clients] * 16


def test_a_token_takes_its_step_and_its_share_of_the_others_prefills() -> None:
    # Fifteen prompts take 1.5 s more than their steps: 0.1 s each, of four others, in 180 tokens.
    prefill_s = loads.prefill_s([1.51, *[0.01] * 9], 0.01, 15)
    assert loads.further_token_s(0.02, prefill_s, 5, 200) == pytest.approx(0.02 + 4 * 0.1 / 180)


@pytest.mark.adr("0292-D2")
def test_the_loop_serves_both_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an engine of ours whose steps take 1 ms, and 10 us more for each token of a prompt."""
    made = PromptEngine()
    monkeypatch.setattr(loads, "engine_of", lambda name, settings: made)
    monkeypatch.setattr(loads, "unseen", lambda function: function)
    monkeypatch.setattr("time.monotonic", lambda: made.now_s)
    loads.main(["vllm", "100", "1000", "4", "--model=llama-3-8b"])
    first, further = (float(line.split()[-2]) for line in capsys.readouterr().out.splitlines())
    # Four prompts of 80 to 100 tokens at once, a tenth of the row's; else one alone.
    assert 0.1 * 4.2 + 0.9 * 1.8 <= first <= 0.1 * 5.0 + 0.9 * 2.0
    # Three others' prompts in 900 tokens.
    assert further == pytest.approx(1 + 3 * 0.9 / 900, abs=0.001)


@pytest.mark.adr("0292-D3")
def test_a_cache_that_is_too_small_for_all_clients_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = PromptEngine(most=3)
    monkeypatch.setattr(loads, "engine_of", lambda name, settings: made)
    monkeypatch.setattr(loads, "unseen", lambda function: function)
    monkeypatch.setattr("time.monotonic", lambda: made.now_s)
    with pytest.raises(loads.CacheTooSmallError, match="holds 3 of 4 requests"):
        loads.main(["vllm", "100", "1000", "4", "--model=llama-3-8b"])


def test_a_tenth_of_a_rows_first_tokens_is_of_requests_that_begin_together() -> None:
    waits_s = [0.5] * 5 + [0.1] * 10
    # Ten rounds of five clients, of which the first begins together.
    expected_s = fmean([0.5] * 5 + [0.1] * 45)
    assert loads.first_token_s(waits_s, 5) == pytest.approx(expected_s)
