"""Layers of Transformer Engine as installed, beside PyTorch's own, on a simulated device.

In bfloat16 they are PyTorch's but for rounding; with FP8 recipes they are within what three bits
behind the first leave of them, and nearer once a history of largest numbers is known.
"""

import torch
import torch.nn.functional as F
import transformer_engine.pytorch as te
from torch import Tensor
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, Format

BF16 = torch.bfloat16


def apart(a: Tensor, b: Tensor) -> float:
    """Return the relative distance of two tensors."""
    a, b = a.detach().float(), b.detach().float()
    return float((a - b).norm() / b.norm())


def heads(x: Tensor) -> Tensor:
    """Return ``(queries, batch, heads, size)`` by heads."""
    return x.float().permute(1, 2, 0, 3)


def decoder() -> None:
    """Compare a layer of a decoder, forward and backward, with what it is made of."""
    torch.manual_seed(0)
    sizes = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "params_dtype": BF16}
    layer = te.TransformerLayer(
        64, 128, 4, self_attn_mask_type="causal", normalization="RMSNorm", activation="swiglu",
        bias=False, fuse_qkv_params=True, **sizes,
    )  # fmt: skip
    x = torch.randn(16, 2, 64, device="cuda", dtype=BF16, requires_grad=True)
    y = layer(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    named = {name: item.detach().float() for name, item in layer.named_parameters()}
    leaf = x.detach().float().requires_grad_()
    attention = "self_attention"
    rows = F.rms_norm(leaf, (64,), named[f"{attention}.layernorm_qkv.layer_norm_weight"], 1e-5)
    packed = rows @ named[f"{attention}.layernorm_qkv.weight"].t()
    q, k, v = packed.unflatten(-1, (4, 3, 16)).unbind(-2)
    mixed = F.scaled_dot_product_attention(*map(heads, (q, k, v)), is_causal=True)
    mixed = mixed.permute(2, 0, 1, 3).flatten(-2)
    hidden = leaf + mixed @ named[f"{attention}.proj.weight"].t()
    rows = F.rms_norm(hidden, (64,), named["layernorm_mlp.layer_norm_weight"], 1e-5)
    gate, up = (rows @ named["layernorm_mlp.fc1_weight"].t()).chunk(2, -1)
    expected = hidden + (F.silu(gate) * up) @ named["layernorm_mlp.fc2_weight"].t()
    (grad,) = torch.autograd.grad(expected, leaf, dy.float())
    distances = apart(y, expected), apart(x.grad, grad)
    print(f"decoder layer: {distances[0]:.4f} forward, {distances[1]:.4f} backward")
    assert max(distances) < 0.02


def recipes() -> None:
    """Compare products of a recipe with those of bfloat16."""
    for recipe in (
        DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=4),
        Float8CurrentScaling(),
    ):
        torch.manual_seed(0)
        layer = te.LayerNormLinear(64, 128, params_dtype=BF16)
        x = torch.randn(32, 64, device="cuda", dtype=BF16, requires_grad=True)
        y = layer(x)
        dy = torch.randn_like(y)
        y.backward(dy)
        plain = y.detach(), x.grad.clone(), layer.weight.grad.clone(), layer.bias.grad.clone()
        distances: tuple[float, ...] = ()
        for _ in range(3):
            x.grad = layer.weight.grad = layer.bias.grad = None
            with te.autocast(enabled=True, recipe=recipe):
                y = layer(x)
            y.backward(dy)
            pairs = zip((y, x.grad, layer.weight.grad, layer.bias.grad), plain, strict=True)
            distances = tuple(apart(*pair) for pair in pairs)
        said = ", ".join(f"{distance:.4f}" for distance in distances)
        print(f"{type(recipe).__name__}: {said} of result, input, weight, bias")
        # Rounded to 3 (forward) and 2 bits (gradients), which are even: 2^-4 and 2^-3 at most.
        assert max(distances) < 0.1
        assert min(distances[:3]) > 0.01


def experts() -> None:
    """Compare grouped products with one for each expert."""
    torch.manual_seed(0)
    layer = te.GroupedLinear(3, 64, 32, bias=False, params_dtype=BF16)
    x = torch.randn(24, 64, device="cuda", dtype=BF16, requires_grad=True)
    y = layer(x, [10, 0, 14])
    y.float().square().sum().backward()
    parts = zip(x.split([10, 0, 14]), (layer.weight0, layer.weight1, layer.weight2), strict=True)
    expected = torch.cat([part.float() @ weight.float().t() for part, weight in parts])
    print(f"experts: {apart(y, expected):.4f}")
    assert apart(y, expected) < 0.01
    assert layer.weight2.grad.norm() > 0


decoder()
recipes()
experts()
