"""Norms, activations, rotary embeddings, and rows of tables.

Source: the definitions that vLLM's own tests compare its kernels with (``tests/kernels/core``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.processes.of_all import OperatorCall
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


@streams("rms_norm", takes="result input weight epsilon")
def _rms_norm(call: OperatorCall) -> None:
    call.result.copy_(normalized(call.input, call.weight, call.epsilon))


@streams("fused_add_rms_norm", takes="input residual weight epsilon", over=("input", "residual"))
def _fused_add_rms_norm(call: OperatorCall) -> None:
    call.input.copy_(normalized(added(call.input, call.residual), call.weight, call.epsilon))


def _wide_half(activate: Callable[..., Tensor], x: Tensor, **how: float) -> Tensor:
    """Return an activation of rows' first half, rounded, times their second half."""
    first, second = x.chunk(2, -1)
    return activate(first.float(), **how).to(x.dtype) * second


def _of_halves(activate: Callable[..., Tensor], x: Tensor, **how: float) -> Tensor:
    """Return an activation of rows' halves, both in float32."""
    return activate(*x.float().chunk(2, -1), **how)


def gelu_tanh(x: Tensor) -> Tensor:
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
    "silu_and_mul": (partial(_wide_half, silu), ()),
    "gelu_and_mul": (partial(_wide_half, gelu), ()),
    "gelu_tanh_and_mul": (partial(_wide_half, gelu_tanh), ()),
    "mul_and_silu": (partial(_of_halves, lambda first, second: first * silu(second)), ()),
    "fatrelu_and_mul": (
        partial(_wide_half, lambda x, threshold: x.where(x > threshold, 0.0)),
        ("threshold",),
    ),
    "silu_and_mul_with_clamp": (partial(_of_halves, clamped_silu), ("limit", "alpha", "beta")),
    "situ_and_mul": (partial(_of_halves, situ), ("beta", "linear_beta")),
    "swigluoai_and_mul": (_swigluoai, ("alpha", "limit")),
    "gelu_new": (lambda x: gelu_tanh(x.float()), ()),
    "gelu_fast": (lambda x: gelu_tanh(x.float()), ()),
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
    @streams(name, takes=" ".join(("input", *_RESULTS, *how)))
    def compute(call: OperatorCall) -> None:
        (into,) = (value for key, value in call.named.items() if key in _RESULTS)
        into.copy_(activate(call.input, **{name: call.named[name] for name in how}))


for _name, (_activate, _how) in _ACTIVATIONS.items():
    _activation(_name, _activate, _how)


def _rotary_bytes(call: OperatorCall) -> tuple[int, int]:
    angles, over = call.cos_sin_cache, num_bytes((call.query, call.key))
    rows = call.positions.numel() * angles.shape[-1] * angles.element_size()
    return over + rows + num_bytes((call.positions,)), over


@streams(
    "rotary_embedding",
    takes="positions query key head_size cos_sin_cache is_neox rope_dim_offset=0 inverse=False",
    moves=_rotary_bytes,
)
def _rotary_embedding(call: OperatorCall) -> None:
    (cos, sin), places = call.cos_sin_cache.chunk(2, -1), call.positions
    how = {"interleaved": not call.is_neox, "back": call.inverse}
    for item in (call.query, call.key):
        if item is not None:
            is_split = item.dim() == places.dim() + 2
            heads = item if is_split else item.unflatten(-1, (-1, call.head_size))
            heads = heads[..., call.rope_dim_offset :]
            heads.copy_(rotated(heads, cos, sin, places, **how))


@streams(
    "vocab_parallel_embedding",
    takes=(
        "out input_ids weight org_vocab_start_index org_vocab_end_index num_org_vocab_padding "
        "added_vocab_start_index added_vocab_end_index"
    ),
    moves=lambda call: (num_bytes((call.out, call.input_ids)), num_bytes((call.out,))),
)
def _vocab_parallel_embedding(call: OperatorCall) -> None:
    ids, first, first_added = (
        call.input_ids,
        call.org_vocab_start_index,
        call.added_vocab_start_index,
    )
    is_own = (ids >= first) & (ids < call.org_vocab_end_index)
    is_added = (ids >= first_added) & (ids < call.added_vocab_end_index)
    own_rows = call.org_vocab_end_index - first + call.num_org_vocab_padding
    rows = torch.where(is_added, ids - first_added + own_rows, ids - first)
    there = (is_own | is_added).unsqueeze(-1)
    call.out.copy_(call.weight[rows.where(there.squeeze(-1), 0)].where(there, 0))
