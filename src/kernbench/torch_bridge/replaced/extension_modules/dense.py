"""Norms, activations, rotary embeddings, and rows of tables.

Source: the definitions that vLLM's own tests compare its kernels with (``tests/kernels/core``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.replaced.extension_modules.definitions import streams
from kernbench.torch_bridge.replaced.package_kernels.flash_values import rotated


def normalized(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Return rows over their root mean square, rounded, times a weight."""
    wide = x.float()
    result = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)
    return result if weight is None else result * weight


def added(x: Tensor, residual: Tensor) -> Tensor:
    """Add to a residual in its place, and return it."""
    return residual.add_(x)


@streams("rms_norm")
def _rms_norm(result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
    result.copy_(normalized(input, weight, epsilon))


@streams("fused_add_rms_norm", over=("input", "residual"))
def _fused_add_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float
) -> None:
    input.copy_(normalized(added(input, residual), weight, epsilon))


def _wide_half(activate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an activation of rows' first half, rounded, times their second half."""

    def compute(x: Tensor, **how: float) -> Tensor:
        first, second = x.chunk(2, -1)
        return activate(first.float(), **how).to(x.dtype) * second

    return compute


def _of_halves(activate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an activation of rows' halves, both in float32."""
    return lambda x, **how: activate(*x.float().chunk(2, -1), **how)


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")


def clamped_silu(gate: Tensor, up: Tensor, limit: float, alpha: float, beta: float) -> Tensor:
    """Return SwiGLU of halves that are cut off at a limit."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """Return Kimi's SituGLU; ``up`` is cut off softly where ``linear_beta`` is above 0."""
    gate = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
    return gate * (up if linear_beta <= 0 else linear_beta * torch.tanh(up / linear_beta))


def _swigluoai(x: Tensor, alpha: float, limit: float) -> Tensor:
    return clamped_silu(x[..., ::2].float(), x[..., 1::2].float(), limit, alpha, 1.0)


_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "silu_and_mul": (_wide_half(silu), ()),
    "gelu_and_mul": (_wide_half(gelu), ()),
    "gelu_tanh_and_mul": (_wide_half(_gelu_tanh), ()),
    "mul_and_silu": (_of_halves(lambda first, second: first * silu(second)), ()),
    "fatrelu_and_mul": (
        _wide_half(lambda x, threshold: x.where(x > threshold, 0.0)),
        ("threshold",),
    ),
    "silu_and_mul_with_clamp": (_of_halves(clamped_silu), ("limit", "alpha", "beta")),
    "situ_and_mul": (_of_halves(situ), ("beta", "linear_beta")),
    "swigluoai_and_mul": (_swigluoai, ("alpha", "limit")),
    "gelu_new": (lambda x: _gelu_tanh(x.float()), ()),
    "gelu_fast": (lambda x: _gelu_tanh(x.float()), ()),
    "gelu_quick": (lambda x: x.float() * torch.sigmoid(1.702 * x.float()), ()),
    "relu_squared": (lambda x: x.float().relu().square(), ()),
    "muse_spark_mul_tanh_soft_cap": (
        lambda x, multiplier, soft_cap_temp: (
            soft_cap_temp * torch.tanh(x.float() * multiplier / soft_cap_temp)
        ),
        ("multiplier", "soft_cap_temp"),
    ),
}
"""What each makes of a tensor, and its further arguments."""
_RESULTS = ("out", "result", "output")
"""How engines name what an activation writes."""


def _activation(name: str, activate: Callable[..., Tensor], how: tuple[str, ...]) -> None:
    def compute(input: Tensor, **named: Any) -> None:
        (into,) = (value for key, value in named.items() if key in _RESULTS)
        into.copy_(activate(input, **{name: named[name] for name in how}))

    streams(name, parameters=("input", *_RESULTS, *how))(compute)


for _name, (_activate, _how) in _ACTIVATIONS.items():
    _activation(_name, _activate, _how)


def _rows_of_heads(x: Tensor, positions: Tensor, head_size: int) -> Tensor:
    return x if x.dim() == positions.dim() + 2 else x.unflatten(-1, (-1, head_size))


def _rotary_bytes(
    positions: Tensor, query: Tensor, key: Tensor | None, cos_sin_cache: Tensor, **named: Any
) -> tuple[int, int]:
    rows = positions.numel() * cos_sin_cache.shape[-1] * cos_sin_cache.element_size()
    over = num_bytes((query, key))
    return over + rows + num_bytes((positions,)), over


@streams("rotary_embedding", moves=_rotary_bytes)
def _rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    cos, sin = cos_sin_cache.chunk(2, -1)
    for item in (query, key):
        if item is not None:
            heads = _rows_of_heads(item, positions, head_size)[..., rope_dim_offset:]
            result = rotated(heads, cos, sin, positions, interleaved=not is_neox, back=inverse)
            heads.copy_(result)


def _embedding_bytes(out: Tensor, input_ids: Tensor, **named: Any) -> tuple[int, int]:
    return num_bytes((out, input_ids)), num_bytes((out,))


@streams("vocab_parallel_embedding", moves=_embedding_bytes)
def _vocab_parallel_embedding(
    out: Tensor,
    input_ids: Tensor,
    weight: Tensor,
    org_vocab_start_index: int,
    org_vocab_end_index: int,
    num_org_vocab_padding: int,
    added_vocab_start_index: int,
    added_vocab_end_index: int,
) -> None:
    is_own = (input_ids >= org_vocab_start_index) & (input_ids < org_vocab_end_index)
    is_added = (input_ids >= added_vocab_start_index) & (input_ids < added_vocab_end_index)
    own_rows = org_vocab_end_index - org_vocab_start_index + num_org_vocab_padding
    rows = torch.where(
        is_added, input_ids - added_vocab_start_index + own_rows, input_ids - org_vocab_start_index
    )
    there = (is_own | is_added).unsqueeze(-1)
    out.copy_(weight[rows.where(there.squeeze(-1), 0)].where(there, 0))
