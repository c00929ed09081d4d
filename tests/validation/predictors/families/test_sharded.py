"""What sources say of precision is read, and not guessed."""

from __future__ import annotations

import pytest

from validation.predictors.families.sharded import precision_of
from validation.programs import ProgramError


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
    with pytest.raises(ProgramError, match="does not state one precision"):
        precision_of(said)
