"""Sizes of published models that runs on many devices trained, and that plans do not name."""

from __future__ import annotations

import re
from dataclasses import replace

from kernbench.plans import KNOWN, ModelShape
from validation.predictors.clusters.jobs import NotDescribedError


def llama(
    name: str, hidden: int, layers: int, heads: int, ffn: int, vocabulary: int, kv_heads: int
) -> ModelShape:
    """Return a decoder with gated MLPs."""
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=ffn,
        vocabulary=vocabulary,
    )


# Sources: config.json of openai/gpt-oss-120b; Devlin et al., 2018 (BERT); Brown et al., 2020.
_GPT_OSS = replace(
    llama("gpt-oss-120b", 2880, 36, 64, 0, 201088, 8),
    head_dim=64,
    bias=True,
    window=128,
    experts=128,
    top_k=4,
    expert_intermediate=2880,
)
_BERT = replace(
    llama("bert-large", 1024, 24, 16, 4096, 30522, 16), gated=False, bias=True, tied=True
)
_MODELS = {
    "GPT-3 175B": replace(KNOWN["gpt3-175b"], vocabulary=51200),
    "Llama-2 70B": llama("llama-2-70b", 8192, 80, 64, 28672, 32000, 8),
    "LLAMA3_70B": KNOWN["llama-3-70b"],
    "Llama-3 70B": KNOWN["llama-3-70b"],
    "Llama-3.1 70B": KNOWN["llama-3-70b"],
    "Llama-3 8B": KNOWN["llama-3-8b"],
    "Llama-3.1 8B": KNOWN["llama-3-8b"],
    "Llama-3 405B": KNOWN["llama-3-405b"],
    "Llama-3.1 405B": KNOWN["llama-3-405b"],
    "GPT OSS 120B": _GPT_OSS,
    "Qwen3_235B": KNOWN["qwen3-235b-a22b"],
    "Qwen3_30B": KNOWN["qwen3-30b-a3b"],
    "DeepSeekV3": KNOWN["deepseek-v3"],
    "BERT-large": _BERT,
}
"""By how the names of rows begin."""


def model_of(name: str) -> ModelShape:
    """Return the model that a row names.

    Raises:
        NotDescribedError: Nothing is known of it.
    """
    said = _plain(name.rpartition("/")[2])
    found = max((each for each in _MODELS if said.startswith(_plain(each))), default=None, key=len)
    if found is None:
        raise NotDescribedError(f"the sizes of {name} are not described")
    return _MODELS[found]


def _plain(name: str) -> str:
    """Return a name as all its spellings have it."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


_WORDS = {"nvfp4": ("fp4",), "fp8": ("fp8", "float8"), "bf16": ("bf16", "bfloat16")}
_UNSURE = ("n/a", "see config", "not stated", "candidates", "fp16/", "/fp16")


def precision_of(said: str) -> str:
    """Return the precision of a run's products: the narrowest that its source names.

    >>> precision_of("bf16+mxfp8 linears"), precision_of("NVFP4"), precision_of("BF16")
    ('fp8', 'nvfp4', 'bf16')

    Raises:
        NotDescribedError: The source leaves it open, or names none.
    """
    words = said.lower()
    for precision, names in _WORDS.items():
        if any(each in words for each in names) and not any(each in words for each in _UNSURE):
            return precision
    raise NotDescribedError("the source does not state one precision")
