"""Models that engines read as Hugging Face's ``config.json``, and what of them fits a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernbench.errors import UsageError
from kernbench.plans import ModelShape, model_of

_POSITIONS = 131072
"""Positions of a model that is known by its sizes alone."""
_LEAST_BYTES = {"": 2, "fp8": 1, "mxfp4": 0.5, "nvfp4": 0.5, "awq": 0.5, "gptq": 0.5}


def folder_of(model: str, scratch: Path) -> Path:
    """Return a folder with the ``config.json`` of a model; of a known name, it is written.

    Raises:
        UnknownNameError: There is no such name or file.
        UsageError: The file does not describe a model, or a known model is of a kind that its
            sizes do not describe whole.
    """
    path, shape = Path(model), model_of(model)
    if path.is_dir():
        return path
    if path.name == "config.json":
        return path.parent
    is_file = path.suffix == ".json"
    text = path.read_text(encoding="utf-8") if is_file else json.dumps(config_of(shape), indent=1)
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "config.json").write_text(text, encoding="utf-8")
    return scratch


def config_of(shape: ModelShape) -> dict[str, Any]:
    """Return the ``config.json`` of a decoder with rotary positions and gated MLPs.

    Raises:
        UsageError: The model is of another kind.
    """
    if shape.window or not (shape.gated and shape.rms_norm):
        raise UsageError(
            f"{shape.name} is known by its sizes alone, which an engine needs more than: give its "
            "config.json"
        )
    kind = "qwen3" if shape.name.startswith("qwen3") else "llama"
    if shape.experts:
        kind = "qwen3_moe" if kind == "qwen3" else "mixtral"
    kind = "deepseek_v3" if shape.latent_kv else kind
    config: dict[str, Any] = {
        "model_type": kind,
        "architectures": [f"{kind.title().replace('_', '')}ForCausalLM"],
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate or shape.expert_intermediate,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": _POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if shape.latent_kv:  # what is not said is as in DeepSeek-V3
        del config["head_dim"], config["intermediate_size"]
    if shape.experts:
        names = {"qwen3_moe": "num_experts", "deepseek_v3": "n_routed_experts"}
        config[names.get(kind, "num_local_experts")] = shape.experts
        config["num_experts_per_tok"] = shape.top_k
        config["moe_intermediate_size"] = shape.expert_intermediate
    return config


def check_fits(model: str, quantization: str, devices: int, device_bytes: int) -> None:
    """Refuse a model whose weights alone do not fit the devices.

    Raises:
        UsageError: They do not; says how many devices they need.
    """
    shape = model_of(model)
    total = shape.parameters * _LEAST_BYTES.get(quantization, 0.5)
    if total > devices * device_bytes:
        needed = -(-total // device_bytes)
        raise UsageError(
            f"{shape.name} has {total / 1e9:,.0f} GB of weights"
            f"{f' in {quantization}' if quantization else ''}, and {devices} "
            f"device{'s have' if devices > 1 else ' has'} {devices * device_bytes / 1e9:,.0f} GB: "
            f"give --tp {needed:.0f} or more, --quantization, or a larger machine"
        )
