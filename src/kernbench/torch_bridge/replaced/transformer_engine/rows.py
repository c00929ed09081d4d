"""Transformer Engine's norms, activations, softmax, rotary embeddings: each a pass over rows.

Source: ``activation.cpp``, ``normalization.cpp``, ``softmax.cpp`` and ``apply_rope.cpp`` of
``transformer_engine/pytorch/csrc/extensions``, and ``common/fused_rope/fused_rope.cu``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import relu, silu

from kernbench.torch_bridge.replaced.extension_modules.dense import clamped_silu, gelu_tanh, situ
from kernbench.torch_bridge.replaced.transformer_engine.fp8 import Target, quantize
from kernbench.torch_bridge.replaced.transformer_engine.kernels import (
    launch,
    name_of,
    refuse_quantized,
    torch_dtype,
)

_FLOAT32 = torch.float32


def layernorm_fwd(
    input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, ln_out: Tensor | None,
    quantizer: Any, otype: Any, sm_margin: int, zero_centered_gamma: bool,
) -> list[Tensor]:  # fmt: skip
    """Return ``[norm, mean, 1 / deviation]`` of rows; the last two have a number a row."""
    refuse_quantized("layernorm_fwd", input)
    target = _target("layernorm_fwd", input, quantizer, otype, ln_out)
    mean, scale = (input.new_empty(input.shape[:1], dtype=_FLOAT32) for _ in range(2))

    def compute(
        x: Tensor, weight: Tensor, bias: Any, mean: Tensor, scale: Tensor, *rest: Tensor
    ) -> None:
        wide = None if bias is None else bias.float()
        shape, gamma = list(weight.shape), _gamma(weight, zero_centered_gamma)
        result, *statistics = torch.native_layer_norm(x.float(), shape, gamma, wide, eps)
        _write((mean, scale), statistics)
        target.store(result, *rest)

    operands = (input, weight, bias, mean, scale, *target.read, *target.written)
    launch("layernorm_fwd", compute, operands, (mean, scale, *target.written))
    return [target.finish(), mean, scale]


def layernorm_bwd(
    dz: Tensor, x: Tensor, mu: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of rows, of the weight and of the bias."""
    refuse_quantized("layernorm_bwd", dz, x)
    results = [torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)]

    def compute(
        dz: Tensor, x: Tensor, mu: Tensor, scale: Tensor, gamma: Tensor, *out: Tensor
    ) -> None:
        weight, shape = _gamma(gamma, zero_centered_gamma), list(gamma.shape)
        wide = dz.reshape(x.shape).float(), x.float()
        statistics = mu.unsqueeze(-1), scale.unsqueeze(-1)
        mask = [True, True, True]
        zeros = torch.zeros_like(weight)
        _write(
            out,
            torch.ops.aten.native_layer_norm_backward(
                *wide, shape, *statistics, weight, zeros, mask
            ),
        )

    launch("layernorm_bwd", compute, (dz, x, mu, rsigma, gamma, *results), results)
    return results


def rmsnorm_fwd(
    input: Tensor, weight: Tensor, eps: float, ln_out: Tensor | None, quantizer: Any, otype: Any,
    sm_margin: int, zero_centered_gamma: bool,
) -> list[Tensor | None]:  # fmt: skip
    """Return ``[norm, None, 1 / root mean square]`` of rows."""
    refuse_quantized("rmsnorm_fwd", input)
    target = _target("rmsnorm_fwd", input, quantizer, otype, ln_out)
    scale = input.new_empty(input.shape[:1], dtype=_FLOAT32)

    def compute(x: Tensor, weight: Tensor, scale: Tensor, *rest: Tensor) -> None:
        wide = x.float()
        scale.copy_(torch.rsqrt(wide.square().mean(-1) + eps))
        target.store(wide * scale.unsqueeze(-1) * _gamma(weight, zero_centered_gamma), *rest)

    operands = (input, weight, scale, *target.read, *target.written)
    launch("rmsnorm_fwd", compute, operands, (scale, *target.written))
    return [target.finish(), None, scale]


def rmsnorm_bwd(
    dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> list[Tensor]:
    """Return the gradients of rows and of the weight."""
    return _rmsnorm_bwd("rmsnorm_bwd", dz, x, None, rsigma, gamma, zero_centered_gamma)


def rmsnorm_bwd_add(
    dz: Tensor, x: Tensor, add: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of rows, plus ``add``, and of the weight."""
    return _rmsnorm_bwd("rmsnorm_bwd_add", dz, x, add, rsigma, gamma, zero_centered_gamma)


def _rmsnorm_bwd(
    name: str, dz: Tensor, x: Tensor, add: Tensor | None, rsigma: Tensor, gamma: Tensor,
    is_centered: bool,
) -> list[Tensor]:  # fmt: skip
    refuse_quantized(name, dz, x)
    results = [torch.empty_like(x), torch.empty_like(gamma)]

    def compute(
        dz: Tensor, x: Tensor, add: Tensor | None, scale: Tensor, gamma: Tensor, dx: Tensor,
        of_gamma: Tensor,
    ) -> None:  # fmt: skip
        by_row = scale.unsqueeze(-1)
        wide, unit = dz.reshape(x.shape).float(), x.float() * by_row
        of_gamma.copy_((wide * unit).reshape(-1, gamma.numel()).sum(0).reshape(gamma.shape))
        weighted = wide * _gamma(gamma, is_centered)
        result = by_row * (weighted - unit * (weighted * unit).mean(-1, keepdim=True))
        dx.copy_(result if add is None else result + add.reshape(x.shape).float())

    launch(name, compute, (dz, x, add, rsigma, gamma, *results), results)
    return results


def _gamma(weight: Tensor, is_centered: bool) -> Tensor:
    return weight.float() + 1 if is_centered else weight.float()


def _target(name: str, like: Tensor, quantizer: Any, otype: Any, into: Any) -> Target:
    return Target(name, like.shape, like, torch_dtype(otype, like.dtype), quantizer, into)


def _write(targets: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    for target, result in zip(targets, results, strict=True):
        target.copy_(result.reshape(target.shape))


def _squared(x: Tensor) -> Tensor:
    return relu(x).square()


def _quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu_tanh,
    "qgelu": _quick,
    "relu": relu,
    "srelu": _squared,
    "silu": silu,
}
_GATES = {
    "glu": torch.sigmoid,
    "geglu": gelu_tanh,
    "qgeglu": _quick,
    "reglu": relu,
    "sreglu": _squared,
    "swiglu": silu,
}


_OF_HALVES: dict[str, Callable[..., Tensor]] = {
    **{name: lambda gate, up, by=by: by(gate) * up for name, by in _GATES.items()},
    "situglu": lambda gate, up, beta1=4.0, beta2=25.0: situ(gate, up, beta1, beta2),
    "clamped_swiglu": lambda gate, up, limit=7.0, alpha=1.702, offset=1.0: clamped_silu(
        gate, up, limit, alpha, offset
    ),
}
_BACKWARD = {"clamped_swiglu": "clamped_dswiglu"}
_SCALED = {
    "scaled_swiglu": ("swiglu", "scaled_dswiglu"),
    "scaled_situglu": ("situglu", "scaled_dsituglu"),
    "scaled_clamped_swiglu": ("clamped_swiglu", "scaled_clamped_dswiglu"),
    "scaled_srelu": ("srelu", "scaled_dsrelu"),
}
"""Activations times a number a row, and their gradients."""
_INTERLEAVED = "glu_interleave_size"


def activations() -> dict[str, Callable[..., Any]]:
    """Return the functions of activations and of their gradients, by name."""
    functions: dict[str, Callable[..., Any]] = {}
    for name in (*_PLAIN, *_OF_HALVES):
        functions[name] = partial(_activation, name)
        functions[_BACKWARD.get(name, f"d{name}")] = partial(_gradient, name, f"d{name}")
    for name in _PLAIN:
        functions[f"dbias_d{name}"] = partial(_gradient, name, f"dbias_d{name}")
    for name, (plain, backward) in _SCALED.items():
        functions[name] = partial(_scaled_activation, name, plain)
        functions[backward] = partial(_scaled_gradient, backward, plain)
    return functions


def _value(name: str, x: Tensor, how: dict[str, float]) -> Tensor:
    """Return an activation in float32; of halves, where it has two operands."""
    if name in _PLAIN:
        return _PLAIN[name](x.float())
    width = int(how.get(_INTERLEAVED, 0))
    plain = {key: number for key, number in how.items() if key != _INTERLEAVED}
    if "glu_linear_offset" in plain:
        plain["offset"] = plain.pop("glu_linear_offset")
    if width:
        pair = x.float().unflatten(-1, (-1, 2, width)).movedim(-2, 0).flatten(-2)
        return _OF_HALVES[name](*pair, **plain)
    return _OF_HALVES[name](*x.float().chunk(2, -1), **plain)


def _gradients(name: str, grad: Tensor, x: Tensor, how: dict[str, float]) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().float().requires_grad_()
        result = _value(name, leaf, how)
        return torch.autograd.grad(result, leaf, grad.reshape(result.shape).float())[0]


def _halved(name: str, x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape) if name in _PLAIN else (*x.shape[:-1], x.shape[-1] // 2)


def _activation(name: str, input: Tensor, quantizer: Any = None, *args: float, **how: float) -> Any:
    refuse_quantized(name, input)
    how, target = _by_name(name, args, how), _of(name, input, _halved(name, input), quantizer)

    def compute(x: Tensor, *rest: Tensor) -> None:
        target.store(_value(name, x, how), *rest)

    launch(name, compute, (input, *target.read, *target.written), target.written)
    return target.finish()


def _gradient(
    name: str, called: str, grad: Tensor, fwd_input: Tensor, quantizer: Any = None,
    *args: float, **how: float,
) -> Any:  # fmt: skip
    """Return the gradient of an activation, behind that of a bias where the name asks for it."""
    refuse_quantized(called, grad, fwd_input)
    how, target = _by_name(name, args, how), _of(name, fwd_input, fwd_input.shape, quantizer)
    sums = [grad.new_empty(fwd_input.shape[-1])] if called.startswith("dbias") else []

    def compute(grad: Tensor, x: Tensor, *rest: Tensor) -> None:
        result = _gradients(name, grad, x, how)
        for of_bias in rest[: len(sums)]:
            of_bias.copy_(result.flatten(0, -2).sum(0))
        target.store(result, *rest[len(sums) :])

    operands = (grad, fwd_input, *sums, *target.read, *target.written)
    launch(called, compute, operands, (*sums, *target.written))
    return [*sums, target.finish()] if sums else target.finish()


def _of(name: str, like: Tensor, shape: Sequence[int], quantizer: Any) -> Target:
    return Target(name, shape, like, like.dtype, quantizer)


def _scaled_activation(
    name: str, plain: str, input: Tensor, act_scales: Tensor, quantizer: Any = None, **how: float
) -> Any:
    refuse_quantized(name, input)
    out = input.new_empty(_halved(plain, input))

    def compute(x: Tensor, scales: Tensor, out: Tensor) -> None:
        result = _value(plain, x, how)
        out.copy_(result * scales.float().reshape(*result.shape[:-1], 1))

    launch(name, compute, (input, act_scales, out), (out,))
    return quantize(out, quantizer)


def _scaled_gradient(
    name: str, plain: str, grad: Tensor, fwd_input: Tensor, act_scales: Tensor,
    quantizer: Any = None, compute_scale_grad: bool = True, **how: float,
) -> tuple[Any, Tensor | None]:  # fmt: skip
    refuse_quantized(name, grad, fwd_input)
    dx = torch.empty_like(fwd_input)
    of_scales = torch.empty_like(act_scales) if compute_scale_grad else None

    def compute(
        grad: Tensor, x: Tensor, scales: Tensor, dx: Tensor, of_scales: Tensor | None
    ) -> None:
        result = _value(plain, x, how)
        wide = grad.reshape(result.shape).float()
        dx.copy_(_gradients(plain, wide * scales.float().reshape(*result.shape[:-1], 1), x, how))
        if of_scales is not None:
            of_scales.copy_((wide * result).sum(-1).reshape(of_scales.shape))

    written = (dx,) if of_scales is None else (dx, of_scales)
    launch(name, compute, (grad, fwd_input, act_scales, dx, of_scales), written)
    return quantize(dx, quantizer), of_scales


_NUMBERS = {
    "situglu": ("beta1", "beta2"),
    "clamped_swiglu": ("limit", "alpha", "glu_linear_offset"),
}


def _by_name(name: str, args: Sequence[float], how: dict[str, float]) -> dict[str, float]:
    return {**dict(zip(_NUMBERS.get(name, ()), args, strict=False)), **how}


def _softmax(name: str, mask: Callable[[Tensor], Tensor | None], x: Tensor, *more: Any) -> Tensor:
    """Return softmax of scaled rows, zeros where a mask hides all; ``more`` ends in the scale."""
    *masks, scale = more
    out = torch.empty_like(x)

    def compute(x: Tensor, *rest: Tensor) -> None:
        *masks, out = rest
        hidden = masks[0].bool() if masks else mask(x)
        scores = x.float() * scale
        if hidden is not None:
            # The kernels take a large number, so that a row without keys has equal shares.
            scores = scores.masked_fill(hidden, -10000.0 if masks else float("-inf"))
        result = scores.softmax(-1)
        if masks and hidden is not None:
            # ... and zeros where nothing is to be seen.
            result = result.masked_fill(hidden.all(-1, keepdim=True), 0.0)
        out.copy_(result)

    launch(f"{name}_forward", compute, (x, *masks, out), (out,))
    return out


def _softmax_backward(name: str, grad: Tensor, results: Tensor, scale: float) -> Tensor:
    """Return the gradient of scaled rows."""
    dx = torch.empty_like(results)

    def compute(grad: Tensor, results: Tensor, dx: Tensor) -> None:
        wide, p = grad.float(), results.float()
        dx.copy_(scale * p * (wide - (wide * p).sum(-1, keepdim=True)))

    launch(f"{name}_backward", compute, (grad, results, dx), (dx,))
    return dx


def _after(offset: int, x: Tensor) -> Tensor:
    """Return which keys come after a query, which is aligned with the first or the last key."""
    queries, keys = x.shape[-2:]
    return torch.ones(queries, keys, dtype=torch.bool).triu(1 + offset * (keys - queries))


_MASKS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "scaled_softmax": lambda x: None,
    "scaled_masked_softmax": lambda x: None,
    "scaled_upper_triang_masked_softmax": partial(_after, 0),
    "scaled_aligned_causal_masked_softmax": partial(_after, 1),
}


def softmaxes() -> dict[str, Callable[..., Any]]:
    """Return the functions of softmax and of its gradients, by name."""
    forward = {f"{name}_forward": partial(_softmax, name, mask) for name, mask in _MASKS.items()}
    return forward | {f"{name}_backward": partial(_softmax_backward, name) for name in _MASKS}


def fused_rope_forward(input: Tensor, freqs: Tensor, *how: Any) -> Tensor:
    """Return rows turned by the angles of their places."""
    return _rotate("fused_rope_forward", False, input, freqs, *how)


def fused_rope_backward(output_grads: Tensor, freqs: Tensor, *how: Any) -> Tensor:
    """Return rows turned back by the angles of their places."""
    return _rotate("fused_rope_backward", True, output_grads, freqs, *how)


def _rotate(
    name: str, is_back: bool, x: Tensor, freqs: Tensor, start_positions: Tensor | None,
    qkv_format: Any, interleaved: bool, cu_seqlens: Tensor | None, cp_size: int, cp_rank: int,
) -> Tensor:  # fmt: skip
    out, layout = x.new_empty(x.shape), name_of("NVTE_QKV_Format", qkv_format)

    def compute(x: Tensor, freqs: Tensor, starts: Any, ends: Any, out: Tensor) -> None:
        angles = freqs.reshape(freqs.shape[0], -1).float()
        if layout == "THD":
            spans = [(first // cp_size, last // cp_size) for first, last in pairwise(ends.tolist())]
        else:
            length = x.shape[0 if layout == "SBHD" else 1]
            spans = [(0, length)]
        for number, (first, last) in enumerate(spans):
            places = _places(last - first, cp_size, cp_rank)
            if layout == "THD":
                shift = 0 if starts is None else int(starts[number])
                out[first:last] = _turned(
                    x[first:last], angles[places + shift][:, None], interleaved, is_back
                )
                continue
            by_batch = places if starts is None else places[:, None] + starts.to(places)
            picked = angles[by_batch]
            picked = picked[:, None, None] if starts is None else picked[:, :, None]
            if layout == "BSHD":
                picked = picked.transpose(0, 1)
            out.copy_(_turned(x, picked, interleaved, is_back))

    launch(name, compute, (x, freqs, start_positions, cu_seqlens, out), (out,))
    return out


def _places(count: int, cp_size: int, cp_rank: int) -> Tensor:
    """Return the places of a rank's tokens: a part from the front and its mirror from the end."""
    if cp_size == 1:
        return torch.arange(count)
    half = count // 2
    front = torch.arange(half) + cp_rank * half
    return torch.cat((front, torch.arange(half) + (2 * cp_size - cp_rank - 1) * half))


def _turned(x: Tensor, angles: Tensor, interleaved: bool, is_back: bool) -> Tensor:
    """Return ``x`` with the first elements of its heads turned.

    The gradient multiplies by the sine of the element that each was multiplied into.
    """
    size = angles.shape[-1]
    wide, cos, sin = x[..., :size].float(), angles.cos(), angles.sin()
    other = wide * sin if is_back else wide
    if interleaved:
        pairs = other.unflatten(-1, (-1, 2))
        first, second = pairs[..., 0], pairs[..., 1]
        moved = torch.stack((second, -first) if is_back else (-second, first), -1).flatten(-2)
    else:
        first, second = other.chunk(2, -1)
        moved = torch.cat((second, -first) if is_back else (-second, first), -1)
    result = wide * cos + (moved if is_back else moved * sin)
    return torch.cat((result.to(x.dtype), x[..., size:]), -1)
