"""Rows of SGLang's whole module of MLA: its products, and what is before and after attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.reference import read_rows
from kernbench.hardware import load_machine
from validation.predictors.libraries.mla_modules import (
    after_attention,
    before_attention,
)
from validation.predictors.library_rows import LibraryPredictor
from validation.predictors.registry import make_predictor
from validation.sources.harness import MLA_MODULE_HOSTS

HEADER = (
    "source,device,op,framework,kernel,mla_dtype,kv_dtype,batch,q_len,kv_len,heads,tp_size,time_us"
)


@pytest.mark.parametrize(("decodes", "weights_of_head"), [(True, 1), (False, 0)])
def test_a_module_reads_each_of_its_weights_once(decodes: bool, weights_of_head: int) -> None:
    machine = load_machine("h100-sxm")
    tokens, heads = 128, 128
    launches = [
        *before_attention(tokens, heads, decodes, machine),
        *after_attention(tokens, heads, decodes, machine),
    ]
    products = [launch for launch in launches if launch.name == "blocks_fp8"]
    queries, results, widened = 1536 * heads * 192, heads * 128 * 7168, heads * 256 * 512
    expected = queries + results + (0 if decodes else widened)
    assert sum(product.hbm_read_bytes for product in products) == pytest.approx(expected, rel=0.02)
    # While it decodes, two batched products with the up-projection of keys and values.
    batched = [launch.hbm_read_bytes for launch in launches if launch.name == "mla_product"]
    up = 2.0 * heads * 512 * 128
    latent, narrow = 2.0 * tokens * heads * 512, 2.0 * tokens * heads * 128
    assert batched == [up + narrow, up + latent][: 2 * weights_of_head]


def test_rows_of_modules_are_answered_and_prompts_take_at_least_the_host(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = (
        "H100-SXM-80GB,wideep_context_mla,sglang,fa3,fp8_block,fp8,1,4,4,64,1,669",
        "H100-SXM-80GB,wideep_generation_mla,sglang,flashinfer,fp8_block,fp8,8,1,128,8,1,34",
        "GB200-SXM,wideep_generation_mla,sglang,trtllm_mla,fp8_block,fp8,8,1,128,8,1,40",
        "L40S,wideep_generation_mla,sglang,triton,fp8_block,fp8,8,1,128,8,1,40",
    )
    path.write_text("\n".join((HEADER, *(f"aic-mla,{line}" for line in lines))) + "\n")
    rows = read_rows([path])
    predictor = make_predictor(rows[0].category)
    assert isinstance(predictor, LibraryPredictor)
    context, hopper, blackwell, ada = (predictor.predict(row) for row in rows)
    assert context.time_us == MLA_MODULE_HOSTS["h100-sxm"]
    assert "mla_trtllm_default_context" in context.how
    assert hopper.time_us is not None
    assert 0 < hopper.time_us < MLA_MODULE_HOSTS["h100-sxm"]
    assert "mla_sglang_trtllm_mla_generation_fp8" in blackwell.how
    assert ada.time_us is None
    assert "no modules of sglang triton" in ada.why_not
