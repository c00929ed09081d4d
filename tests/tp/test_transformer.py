"""A block of a transformer, split over ranks, against numpy on one rank in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernbench import tp
from kernbench.errors import UsageError
from kernbench.tp.attention import Attention, CachedAttention, TrainingAttention
from kernbench.tp.sharding import TransformerConfig, extract
from kernbench.tp.transformer import TransformerLayer
from tests.tiers import of_campaigns

Array = npt.NDArray[Any]

BATCH, SEQ, HIDDEN, INNER, HEADS, WIDTH = 2, 6, 32, 48, 4, 8

GPT = {"gated": False, "bias": True}
LLAMA = {"gated": True, "num_kv_heads": 2}
BERT = {"gated": False, "bias": True}


def config_of(tp_size: int, **options: Any) -> TransformerConfig:
    sizes: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_heads": HEADS}
    return TransformerConfig(
        **sizes, vocab_size=8, num_layers=1, tp_size=tp_size, dtype="f32", **options
    )


def weights_of(config: TransformerConfig) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(spec.shape) * (0.3 if len(spec.shape) == 1 else 0.2)
        for name, spec in config.layer_weights.items()
    }


def tables(positions: int) -> tuple[Array, Array]:
    rates = 10000.0 ** (-np.arange(WIDTH // 2) * 2 / WIDTH)
    angles = np.arange(positions)[:, None] * rates
    return np.cos(angles), np.sin(angles)


def load(layer: TransformerLayer, weights: dict[str, Array], torch: Any) -> None:
    up = "mlp.gate_up" if layer.config.gated else "mlp.up"
    names = {"attention.qkv": layer.qkv, "attention.out": layer.out, up: layer.up}
    for name, projection in {**names, "mlp.down": layer.down}.items():
        projection.load_full(
            weights[name].astype(np.float32),
            None if projection.bias is None else weights[f"{name}.bias"].astype(np.float32),
        )
    for (weight, _), name in zip(layer.norms, ("attention.norm", "mlp.norm"), strict=True):
        weight.copy_(weights[name].astype(np.float32))


class Reference:
    """The block in numpy; ``grads`` by differences of a loss."""

    def __init__(
        self, config: TransformerConfig, causal: bool, norm: str, post_norm: bool, rotate: bool
    ):
        self.config, self.causal, self.norm_name = config, causal, norm
        self.post_norm, self.rotate = post_norm, rotate

    def norm(self, x: Array, weight: Array) -> Array:
        if self.norm_name == "layer":
            x = x - x.mean(-1, keepdims=True)
        result: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
        return result

    def linear(self, x: Array, weights: dict[str, Array], name: str) -> Array:
        result: Array = x @ weights[name] + weights.get(f"{name}.bias", 0.0)
        return result

    def attend(self, x: Array, weights: dict[str, Array]) -> Array:
        config = self.config
        key_heads = config.num_kv_heads or HEADS
        fused = self.linear(x, weights, "attention.qkv").reshape(
            BATCH, -1, HEADS + 2 * key_heads, WIDTH
        )
        q, k, v = np.split(fused, [HEADS, HEADS + key_heads], axis=2)
        seq = fused.shape[1]
        if self.rotate:
            cos, sin = (table[:, None] for table in tables(seq))
            q, k = (
                np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
                for a, b in (np.split(item, 2, -1) for item in (q, k))
            )
        k, v = (np.repeat(item, HEADS // key_heads, 2) for item in (k, v))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / WIDTH**0.5
        if self.causal:
            scores = np.where(np.tri(seq, dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        shares = powers / powers.sum(-1, keepdims=True)
        context = np.einsum("bhqk,bkhd->bqhd", shares, v).reshape(BATCH * seq, -1)
        return self.linear(context, weights, "attention.out")

    def mlp(self, x: Array, weights: dict[str, Array]) -> Array:
        if self.config.gated:
            gate, up = np.split(self.linear(x, weights, "mlp.gate_up"), 2, -1)
            inner = gate / (1 + np.exp(-gate)) * up
        else:
            z = self.linear(x, weights, "mlp.up")
            inner = z / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))
        return self.linear(inner, weights, "mlp.down")

    def __call__(self, x: Array, weights: dict[str, Array]) -> Array:
        first, second = weights["attention.norm"], weights["mlp.norm"]
        if self.post_norm:
            h = self.norm(x + self.attend(x, weights), first)
            return self.norm(h + self.mlp(h, weights), second)
        h = x + self.attend(self.norm(x, first), weights)
        return h + self.mlp(self.norm(h, second), weights)


def inputs(seq: int = SEQ) -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((BATCH * seq, HIDDEN)), rng.standard_normal((BATCH * seq, HIDDEN))


def build(
    torch: Any,
    tp_size: int,
    options: dict[str, Any],
    weights: dict[str, Array],
    attention: type[Attention] | Any,
    layer_options: dict[str, Any],
    **more: Any,
) -> TransformerLayer:
    config = config_of(tp_size, **options)
    heads = TransformerLayer.heads(config)
    layer = TransformerLayer(config, attention(heads, **more), **layer_options)
    load(layer, weights, torch)
    return layer


KINDS = [
    ("gpt", GPT, {"norm": "layer"}, False),
    ("gpt", GPT, {"norm": "layer"}, True),
    ("llama", LLAMA, {"norm": "rms"}, False),
    ("llama", LLAMA, {"norm": "rms"}, True),
]


@pytest.mark.adr("0014-D9")
@pytest.mark.parametrize(("name", "options", "layer_options", "keep_scores"), KINDS)
@pytest.mark.parametrize(
    ("tp_size", "sequence_parallel"), [of_campaigns(1, False), of_campaigns(2, False), (2, True)]
)
def test_forward_and_backward(
    on_ranks: Any,
    name: str,
    options: dict[str, Any],
    layer_options: dict[str, Any],
    keep_scores: bool,
    tp_size: int,
    sequence_parallel: bool,
) -> None:
    rotate = name == "llama"
    options = {**options, "sequence_parallel": sequence_parallel}
    weights = weights_of(config_of(tp_size, **options))
    reference = Reference(config_of(1, **options), True, layer_options["norm"], False, rotate)
    x, grad = inputs()
    rng = np.random.default_rng(2)
    # The loss changes along a direction as the gradients say.
    step_x = rng.standard_normal(x.shape)
    steps = {key: rng.standard_normal(weight.shape) for key, weight in weights.items()}

    def moved(size: float) -> float:
        shifted = {key: weight + size * steps[key] for key, weight in weights.items()}
        return float((grad * reference(x + size * step_x, shifted)).sum())

    slope = (moved(1e-6) - moved(-1e-6)) / 2e-6

    def body(torch: Any, rank: int) -> tuple[Array, float]:
        rotary = tuple(torch.from_numpy(table.astype(np.float32)) for table in tables(SEQ))
        layer = build(
            torch,
            tp_size,
            options,
            weights,
            TrainingAttention,
            layer_options,
            batch=BATCH,
            keep_scores=keep_scores,
            rotary=rotary if rotate else None,
        )
        local = slice(None)
        if sequence_parallel:
            size = x.shape[0] // tp_size
            local = slice(rank * size, (rank + 1) * size)
        y = layer(torch.from_numpy(x[local].astype(np.float32)))
        grad_x = layer.backward(torch.from_numpy(grad[local].astype(np.float32)))
        result = np.concatenate(
            [np.zeros(0), *[gradient.numpy().ravel() for gradient in layer.gradients()]]
        )
        along = np.concatenate([own_part(steps, layer, name).ravel() for name in order(layer)])
        # What every rank holds whole is counted once.
        share = np.concatenate(
            [
                np.full(own_part(steps, layer, name).size, whole_share(layer, name, tp_size))
                for name in order(layer)
            ]
        )
        own_x = grad_x.numpy() * step_x[local]
        slope = float((result * along * share).sum())
        return y.numpy(), slope + float(own_x.sum()) / (1 if sequence_parallel else tp_size)

    results = on_ranks(tp_size, body)
    expected = reference(x, weights)
    whole = [y for y, _ in results]
    outputs = [np.concatenate(whole)] if sequence_parallel else whole
    for y in outputs:
        np.testing.assert_allclose(y, expected, rtol=2e-4, atol=2e-4)
    assert sum(part for _, part in results) == pytest.approx(slope, rel=2e-3)


def order(layer: TransformerLayer) -> list[str]:
    """Return the names of the parameters in the layer's order."""
    up = "mlp.gate_up" if layer.config.gated else "mlp.up"
    names = ["attention.qkv", "attention.out", up, "mlp.down"]
    if layer.config.bias:
        names = [item for name in names for item in (name, f"{name}.bias")]
    norms = ["attention.norm", "mlp.norm"]
    if layer.centred:
        norms = [item for name in norms for item in (name, f"{name}.shift")]
    return names + norms


def own_part(steps: dict[str, Array], layer: TransformerLayer, name: str) -> Array:
    spec = layer.config.layer_weights.get(name)
    if spec is None:
        return np.zeros(HIDDEN)  # the shift of a norm, which the loss above leaves alone
    rank = tp.get_tensor_model_parallel_rank()
    part: Array = extract(steps[name], spec, rank)
    return part


def whole_share(layer: TransformerLayer, name: str, tp_size: int) -> float:
    spec = layer.config.layer_weights.get(name)
    return 1 / tp_size if spec is None or spec.dim is None else 1.0


@pytest.mark.adr("0014-D9")
@pytest.mark.parametrize("tp_size", [1, 2])
def test_norms_behind_the_residuals(on_ranks: Any, tp_size: int) -> None:
    weights = weights_of(config_of(tp_size, **BERT))
    x, _ = inputs()

    def body(torch: Any, rank: int) -> Array:
        layer = build(
            torch,
            tp_size,
            BERT,
            weights,
            TrainingAttention,
            {"norm": "layer", "post_norm": True},
            batch=BATCH,
            causal=False,
            keep_scores=True,
        )
        result: Array = layer(torch.from_numpy(x.astype(np.float32))).numpy()
        with pytest.raises(tp.BackwardError, match="norms before the residuals only"):
            layer.backward(torch.zeros(1))
        return result

    expected = Reference(config_of(1, **BERT), False, "layer", True, False)(x, weights)
    for answer in on_ranks(tp_size, body):
        np.testing.assert_allclose(answer, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.adr("0014-D9")
@pytest.mark.parametrize("keep_scores", [False, True])
@pytest.mark.parametrize(("name", "options"), [("gpt", GPT), ("llama", LLAMA)])
def test_prefill_and_decode_give_what_the_whole_sequence_gives(
    on_ranks: Any, name: str, options: dict[str, Any], keep_scores: bool
) -> None:
    weights = weights_of(config_of(2, **options))
    x, _ = inputs()
    by_sequence = x.reshape(BATCH, SEQ, HIDDEN)
    norm: Any = "layer" if name == "gpt" else "rms"

    def body(torch: Any, rank: int) -> Array:
        config = config_of(2, **options)
        heads = TransformerLayer.heads(config)
        shape = (BATCH, heads.num_key_heads, SEQ + 3, heads.size)
        rotary = tuple(torch.from_numpy(table.astype(np.float32)) for table in tables(SEQ + 3))
        attention = CachedAttention(
            torch.zeros(shape),
            torch.zeros(shape),
            heads,
            BATCH,
            keep_scores=keep_scores,
            rotary=rotary if name == "llama" else None,
        )
        layer = TransformerLayer(config, attention, norm=norm)
        load(layer, weights, torch)
        parts, first = [], 0
        for count in (SEQ - 2, 1, 1):
            tokens = by_sequence[:, first : first + count].reshape(-1, HIDDEN).astype(np.float32)
            parts.append(layer(torch.from_numpy(tokens)).numpy().reshape(BATCH, count, HIDDEN))
            first += count
        assert attention.position == SEQ
        with pytest.raises(UsageError, match="room for 9 tokens and holds 6; 4 more do not fit"):
            layer(torch.zeros(BATCH * 4, HIDDEN))
        return np.concatenate(parts, 1)

    reference = Reference(config_of(1, **options), True, norm, False, name == "llama")
    expected = reference(x, weights).reshape(BATCH, SEQ, HIDDEN)
    for result in on_ranks(2, body):
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.adr("0014-D9")
def test_packed_sequences_give_what_each_gives_alone(on_ranks: Any) -> None:
    weights = weights_of(config_of(2, **BERT))
    x, _ = inputs()
    lengths = (SEQ, 2)
    kept = [row for b, length in enumerate(lengths) for row in range(b * SEQ, b * SEQ + length)]
    options: dict[str, Any] = {"norm": "layer", "post_norm": True}

    def body(torch: Any, rank: int) -> Array:
        rows = torch.from_numpy(np.array(kept, dtype=np.int32))
        count = torch.from_numpy(np.array(lengths, dtype=np.int32))

        def attention(heads: tp.Heads) -> tp.PackedAttention:
            return tp.PackedAttention(rows, count, SEQ, heads, BATCH)

        layer = build(torch, 2, BERT, weights, attention, options)
        result: Array = layer(torch.from_numpy(x[kept].astype(np.float32))).numpy()
        return result

    reference = Reference(config_of(1, **BERT), False, "layer", True, False)
    twice = np.concatenate([x[SEQ : SEQ + 2]] * BATCH)
    expected = np.concatenate([reference(x, weights)[:SEQ], reference(twice, weights)[:2]])
    for answer in on_ranks(2, body):
        np.testing.assert_allclose(answer, expected, rtol=2e-4, atol=2e-4)


def test_what_does_not_fit_is_refused(on_ranks: Any) -> None:
    def body(torch: Any, rank: int) -> None:
        config = config_of(1, **GPT)
        heads = TransformerLayer.heads(config)
        layer = TransformerLayer(config, TrainingAttention(heads, 3), norm="layer")
        with pytest.raises(
            UsageError, match="4 tokens cannot be divided into 3 sequences of equal length"
        ):
            layer(torch.zeros(4, HIDDEN))
        with pytest.raises(tp.BackwardError, match="needs a forward before it"):
            TransformerLayer(config, TrainingAttention(heads, 1)).backward(torch.zeros(1, HIDDEN))
        with pytest.raises(UsageError, match="batch must be at least 1"):
            TrainingAttention(heads, 0)
        with pytest.raises(UsageError, match=r"the cache must be \(2, 4, room, 8\)"):
            CachedAttention(torch.zeros(2, 4, 9), torch.zeros(2, 4, 9), heads, 2)

    on_ranks(1, body)
