"""Run small models of Hugging Face's transformers on a simulated device and compare with the CPU.

    kernbench torchrun tests/libraries/models.py [NAME ...]

with ``transformers`` installed; ``make test-models`` does both. Of each family a model with two
small layers: loss, the gradients of all parameters, those under autocast, too, and what it
generates, greedily.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {**GROUPED, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CAUSAL, MASKED, PAIRED = (
    transformers.AutoModelForCausalLM,
    transformers.AutoModelForMaskedLM,
    transformers.AutoModelForSeq2SeqLM,
)
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (CAUSAL, GROUPED),
    "qwen2": (CAUSAL, GROUPED),
    "gemma2": (CAUSAL, GROUPED),
    "phi3": (CAUSAL, {**SMALL, "num_key_value_heads": 2}),
    "granite": (CAUSAL, SMALL),
    "cohere": (CAUSAL, SMALL),
    "falcon": (CAUSAL, SMALL),
    "gpt_neox": (CAUSAL, SMALL),
    "opt": (CAUSAL, {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0}),
    "bloom": (CAUSAL, {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}),
    "gpt2": (CAUSAL, {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }),
    "mixtral": (CAUSAL, {**GROUPED, "num_local_experts": 4}),
    "gpt_oss": (CAUSAL, {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": (CAUSAL, {**EXPERTS, "num_experts": 4}),
    "qwen3_moe": (CAUSAL, {**EXPERTS, "num_experts": 4}),
    "deepseek_v3": (CAUSAL, {
        **SMALL, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1,
    }),
    "mamba": (CAUSAL, {
        "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 8,
    }),
    "rwkv": (CAUSAL, {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}),
    "bert": (MASKED, {
        **SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }),
    "t5": (PAIRED, {
        "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16,
        "vocab_size": 100, "dropout_rate": 0.0, "decoder_start_token_id": 0,
    }),
}  # fmt: skip


def trained(model: Any, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the gradients by parameter, on the host."""
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    clones = {
        name: parameter.grad.cpu().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return loss.detach().cpu(), clones


def generated(model: Any, tokens: Tensor) -> list[list[int]]:
    generate = model.generate(tokens[:, :4], max_new_tokens=6, min_new_tokens=6, do_sample=False)
    return generate.tolist()


def compare(name: str) -> None:
    """Raise if a device does not do what the CPU does."""
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    model = kind.from_config(AutoConfig.for_model(name, **TOKENS, **sizes))
    tokens = torch.randint(3, 100, (2, 12))
    generates = kind is not MASKED
    loss, gradients = trained(model.train(), tokens)
    sequence = generated(model.eval(), tokens) if generates else None
    model = model.to("cuda")
    my_loss, my_gradients = trained(model.train(), tokens.cuda())
    torch.testing.assert_close(my_loss, loss, rtol=1e-4, atol=1e-5)
    assert my_gradients.keys() == gradients.keys()
    for item, expected in gradients.items():
        torch.testing.assert_close(my_gradients[item], expected, rtol=1e-3, atol=1e-5, msg=item)
    with torch.autocast("cuda", torch.bfloat16):
        short_loss, short = trained(model, tokens.cuda())
    torch.testing.assert_close(short_loss.float(), loss, rtol=_SHORT, atol=_SHORT)
    assert short.keys() == gradients.keys()
    off = sum((short[name] - expected).square().sum() for name, expected in gradients.items())
    whole = sum(gradient.square().sum() for gradient in gradients.values())
    assert off < _SHORT * whole, f"gradients under autocast are {(off / whole) ** 0.5:.0%} off"
    if generates:
        assert generated(model.eval(), tokens.cuda()) == sequence


_SHORT = 0.04
"""What bfloat16 may change, of the loss, and of the square of all gradients."""


def main(names: list[str]) -> int:
    """Compare the models whose names contain one of the words, or all; return how many differ."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    chosen = [model for model in MODELS if not names or any(word in model for word in names)]
    differing = 0
    for name in chosen:
        try:
            compare(name)
        except Exception as error:
            differing += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"{name}: as on the CPU", flush=True)
    print(
        f"{len(chosen) - differing} of {len(chosen)} models do on a device what they do on the CPU"
    )
    return min(differing, 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
