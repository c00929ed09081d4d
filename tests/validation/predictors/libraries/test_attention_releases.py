"""Rows of attention whose releases did otherwise than the row says."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import Row, read_rows
from validation.predictors.attention import AttentionPredictor
from validation.predictors.libraries.attention_releases import (
    LEFT_WINDOW,
    Release,
    releases,
)

HEAD = (
    "source,device,op,framework,kernel,attn_dtype,kv_dtype,batch,q_len,kv_len,heads,kv_heads,"
    "head_dim,window,causal,time_us,n_releases,note"
)
LONG = (
    "me,B200-SXM,attention_prefill,sglang,trtllm_mha,bfloat16,bfloat16,2,8192,8192,48,4,64,0,yes,"
    "150,1,suspect: above the device peak"
)


@pytest.fixture(scope="module")
def predictor() -> AttentionPredictor:
    return AttentionPredictor(presets())


@pytest.fixture(scope="module")
def long_prompt(tmp_path_factory: pytest.TempPathFactory) -> Row:
    path = Path(tmp_path_factory.mktemp("rows")) / "attention.csv"
    path.write_text(f"{HEAD}\n{LONG}\n")
    (row,) = read_rows([path])
    return row


def time_us(predictor: AttentionPredictor, row: Row, **fields: str) -> float:
    op = fields.get("op", row.op)
    answer = predictor.predict(replace(row, op=op, fields={**row.fields, **fields}))
    assert answer.time_us is not None, answer.why_not
    return answer.time_us


def test_a_prompt_with_a_window_that_was_left_takes_the_time_of_one_that_names_it(
    predictor: AttentionPredictor, long_prompt: Row
) -> None:
    named = time_us(predictor, long_prompt, window=str(LEFT_WINDOW), note="")
    whole = time_us(predictor, long_prompt, n_releases="3", note="")
    assert time_us(predictor, long_prompt) == named
    assert whole > 3 * named
    assert time_us(predictor, long_prompt, n_releases="2") == pytest.approx((whole + named) / 2)


def test_conversions_of_an_older_release_take_time_beside_its_kernel(
    predictor: AttentionPredictor, long_prompt: Row
) -> None:
    narrow = {"device": "GB200-SXM", "attn_dtype": "fp8", "kv_dtype": "fp8", "note": ""}
    row = replace(long_prompt, device="GB200-SXM")
    newer, mean, older = (time_us(predictor, row, **narrow, n_releases=item) for item in "321")
    assert newer < mean < older
    assert mean == pytest.approx((newer + older) / 2)


def test_other_stacks_measured_what_their_rows_say(long_prompt: Row) -> None:
    said = (Release(),)
    assert releases({**long_prompt.fields, "framework": "vllm"}, "b200") == said
    assert releases(long_prompt.fields, "h200") == said
    decode = {**long_prompt.fields, "op": "attention_decode"}
    assert releases(decode, "b200") == said
    left = (Release(left_window=True),)
    assert releases({**decode, "kernel": "flash_attention"}, "l40s") == left
