"""What sources say of models and of precision is read, and not guessed."""

from __future__ import annotations

import pytest

from validation.predictors.clusters.jobs import NotDescribedError
from validation.predictors.clusters.models import model_of, precision_of


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        (("Llama-3.1 70B", "llama3.1-70b", "meta-llama/Llama-3.1-70B", "LLAMA_3.1_70B"), 8192),
        (("DeepSeekV3", "deepseek-v3", "DeepSeek V3 671B"), 7168),
        (("Qwen3_235B", "Qwen3 235B-A22B", "qwen3-235b"), 4096),
    ],
)
def test_a_model_is_found_in_all_its_spellings(spellings: tuple[str, ...], name: int) -> None:
    """By the hidden sizes of their config.json."""
    assert {model_of(each).hidden for each in spellings} == {name}


def test_a_model_that_nobody_described_is_no_other_one() -> None:
    for name in ("Llama-4 Scout", "Llama-2 7b", "GPT", ""):
        with pytest.raises(NotDescribedError, match="not described"):
            model_of(name)


@pytest.mark.parametrize(
    ("said", "precision"),
    [
        ("NVFP4", "nvfp4"),
        ("nvfp4+bf16", "nvfp4"),
        ("MXFP8", "fp8"),
        ("FP8-MX", "fp8"),
        ("bf16+mxfp8_cublas", "fp8"),
        ("bf16+float8 rowwise", "fp8"),
        ("BF16", "bf16"),
        ("amp_bf16", "bf16"),
    ],
)
def test_the_narrowest_precision_is_that_of_products(said: str, precision: str) -> None:
    assert precision_of(said) == precision


@pytest.mark.parametrize(
    "said", ["", "n/a", "fp16/fp8", "fp8 (see config)", "fp16/fp8 (not stated)", "tf32"]
)
def test_a_precision_that_is_left_open_is_not_chosen(said: str) -> None:
    with pytest.raises(NotDescribedError, match="does not state one precision"):
        precision_of(said)
