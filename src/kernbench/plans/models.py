"""Models by name, or from a Hugging Face ``config.json``: their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.inputs import MOST_JSON_BYTES, parse_json, read_text, shipped_yaml


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer, unsplit."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Inside the MLP; of the experts that all tokens see, in a mixture of experts (0 for none)."""
    vocabulary: int
    gated: bool = True
    bias: bool = False
    rms_norm: bool = True
    tied: bool = False
    experts: int = 0
    """Routed experts of a layer; 0 for a dense model."""
    top_k: int = 0
    """Experts of a token."""
    expert_intermediate: int = 0
    window: int = 0
    """Keys before its own that a query of every second layer sees; 0 where all layers see all."""
    latent_kv: int = 0
    """Cached numbers of a token and layer in multi-head latent attention; 0 for keys and values."""
    latent_weights: int = 0
    """Weights of such attention in a layer."""

    @property
    def kv_numbers(self) -> int:
        """Cached numbers of a token in a layer."""
        return self.latent_kv or 2 * self.kv_heads * self.head_dim

    @property
    def attention_weights(self) -> int:
        """Weights of a layer's attention."""
        heads = 2 * self.heads + 2 * self.kv_heads
        return self.latent_weights or self.hidden * self.head_dim * heads

    @property
    def mlp_weights(self) -> int:
        """Weights of a layer's MLP; of a mixture, those that all tokens see, and the router."""
        return self.hidden * ((3 if self.gated else 2) * self.intermediate + self.experts)

    @property
    def expert_weights(self) -> int:
        """Weights of all routed experts of a layer."""
        return self.experts * self.hidden * 3 * self.expert_intermediate

    @property
    def parameters(self) -> int:
        """Weights of the model, without norms and biases."""
        layer = self.attention_weights + self.mlp_weights + self.expert_weights
        return self.layers * layer + self.table * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Weights that a token meets in products."""
        unused = self.experts - self.top_k
        idle = unused * self.hidden * 3 * self.expert_intermediate * self.layers
        return self.parameters - idle - (0 if self.tied else self.table)

    @property
    def table(self) -> int:
        """Weights of the embedding."""
        return self.vocabulary * self.hidden


KNOWN = {
    values["name"]: ModelShape(**values)
    for values in shipped_yaml("kernbench.plans", "models.yaml")
}


_MOST = 10**9
"""The most that any size may be."""


def model_of(name: str) -> ModelShape:
    """Return the model of a name, or of a Hugging Face ``config.json``.

    Raises:
        UnknownNameError: There is no such name or file.
        UsageError: The file does not describe such a model; names the key.
    """
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json":
        try:
            text = read_text(path, MOST_JSON_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path}: no config.json that can be read: {why}") from None
        return _of_config(parse_json(text, str(path)), path)
    if name not in KNOWN:
        raise UnknownNameError(
            f"unknown model {name!r} (or name a config.json): {nearest(name, KNOWN)}"
        )
    return KNOWN[name]


def _of_config(values: Any, path: Path) -> ModelShape:
    """Return the sizes that a configuration says, under the names that families use."""
    if not isinstance(values, dict):
        raise UsageError(f"{path}: must be an object, as Hugging Face's config.json")

    def size(*names: str, otherwise: int | None = None, least: int = 1) -> int:
        if otherwise == 0:
            least = 0
        for name in names:
            value = values.get(name)
            if value is not None:
                if type(value) is not int or not least <= value <= _MOST:
                    raise UsageError(
                        f"{path}: {name} must be a whole number from {least} to {_MOST:,}, but got "
                        f"{value!r:.40}"
                    )
                return value
        if otherwise is None:
            raise UsageError(f"{path}: there is no {' or '.join(names)}")
        return otherwise

    hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    is_gpt2 = "n_embd" in values
    experts = size("num_local_experts", "num_experts", "n_routed_experts", otherwise=0)
    inner = size("intermediate_size", "n_inner", otherwise=4 * hidden, least=0)
    expert_inner = size("moe_intermediate_size", otherwise=inner) if experts else 0
    rank = size("kv_lora_rank", otherwise=0)
    latent = rank + size("qk_rope_head_dim", otherwise=0) if rank else 0
    of_file = path.parent.resolve().name if path.stem == "config" else path.stem
    return ModelShape(
        name=str(values.get("_name_or_path") or of_file),
        hidden=hidden,
        layers=size("num_hidden_layers", "n_layer"),
        heads=heads,
        kv_heads=size("num_key_value_heads", otherwise=heads),
        head_dim=size("v_head_dim", "head_dim", otherwise=hidden // heads),
        intermediate=expert_inner * size("n_shared_experts", otherwise=0) if experts else inner,
        vocabulary=size("vocab_size"),
        gated=not is_gpt2,
        bias=is_gpt2,
        rms_norm=not is_gpt2,
        tied=bool(values.get("tie_word_embeddings", is_gpt2)),
        experts=experts,
        top_k=size("num_experts_per_tok", otherwise=2) if experts else 0,
        expert_intermediate=expert_inner,
        latent_kv=latent,
        latent_weights=_latent_weights(size, hidden, heads, rank) if rank else 0,
    )


def _latent_weights(size: Any, hidden: int, heads: int, rank: int) -> int:
    rope, plain, value = size("qk_rope_head_dim"), size("qk_nope_head_dim"), size("v_head_dim")
    queries = heads * (rope + plain)
    narrow = size("q_lora_rank", otherwise=0)
    of_queries = narrow * (hidden + queries) if narrow else hidden * queries
    of_keys = hidden * (rank + rope) + rank * heads * (plain + value)
    return int(of_queries + of_keys + heads * value * hidden)
