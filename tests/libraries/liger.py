"""Operations of Liger Kernel (``liger-kernel``) and what they compute."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nf
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.dyt import LigerDyTFunction
from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
from liger_kernel.ops.geglu import LigerGELUMulFunction
from liger_kernel.ops.group_norm import LigerGroupNormFunction
from liger_kernel.ops.jsd import LigerJSDFunction
from liger_kernel.ops.kl_div import LigerKLDivLossFunction
from liger_kernel.ops.layer_norm import LigerLayerNormFunction
from liger_kernel.ops.multi_token_attention import LigerMultiTokenAttentionFunction
from liger_kernel.ops.poly_norm import LigerPolyNormFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.softmax import LigerSoftmaxFunction
from liger_kernel.ops.sparsemax import LigerSparsemaxFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from liger_kernel.ops.tvd import LigerTVDLossFunction

from tests.libraries.comparing import Case, check_same, normal


def _first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def rms_norm(dtype: torch.dtype, tolerance: float) -> None:
    check_same(
        lambda x, w: LigerRMSNormFunction.apply(x.clone(), w, 1e-6, 0.0, "llama"),
        lambda x, w: nf.rms_norm(x, (256,), w, 1e-6),
        normal(64, 256, dtype=dtype),
        normal(256, dtype=dtype),
        tolerance=tolerance,
    )


def layer_norm() -> None:
    check_same(
        lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5),
        lambda x, w, b: nf.layer_norm(x, (300,), w, b, 1e-5),
        normal(40, 300),
        normal(300),
        normal(300),
    )


def group_norm() -> None:
    check_same(
        lambda x, w, b: LigerGroupNormFunction.apply(x, w, b, 16, 4, 1e-5),
        lambda x, w, b: nf.group_norm(x, 4, w, b, 1e-5),
        normal(3, 16, 64),
        normal(16),
        normal(16),
    )


def poly_norm() -> None:
    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    check_same(
        lambda x, w, b: LigerPolyNormFunction.apply(x, w, b, 1e-6, False),
        lambda x, w, b: w[0] * unit(x**3) + w[1] * unit(x**2) + w[2] * unit(x) + b,
        normal(32, 128),
        normal(3),
        normal(),
    )


def fused_add_rms_norm() -> None:
    check_same(
        lambda x, r, w: LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6, 0.0, "llama", False)[0],
        lambda x, r, w: nf.rms_norm(x + r, (256,), w, 1e-6),
        normal(32, 256),
        normal(32, 256),
        normal(256),
    )


def swiglu() -> None:
    check_same(
        LigerSiLUMulFunction.apply, lambda a, b: nf.silu(a) * b, normal(32, 300), normal(32, 300)
    )


def geglu() -> None:
    check_same(
        LigerGELUMulFunction.apply,
        lambda a, b: nf.gelu(a, approximate="tanh") * b,
        normal(32, 300),
        normal(32, 300),
    )


def softmax() -> None:
    check_same(LigerSoftmaxFunction.apply, lambda x: x.softmax(-1), normal(32, 300))


def sparsemax() -> None:
    def definition(x: torch.Tensor) -> torch.Tensor:
        ordered = x.sort(dim=-1, descending=True).values
        ranks = torch.arange(1, x.shape[-1] + 1, device=x.device)
        support = ((1 + ranks * ordered) > ordered.cumsum(-1)).sum(-1, keepdim=True)
        threshold = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
        return (x - threshold).clamp(min=0)

    check_same(lambda x: LigerSparsemaxFunction.apply(x, -1), definition, normal(16, 100))


def dyt() -> None:
    check_same(
        LigerDyTFunction.apply,
        lambda x, a, g, b: g * torch.tanh(a * x) + b,
        normal(32, 256),
        normal(1),
        normal(256),
        normal(256),
    )


def cross_entropy(smoothing: float) -> None:
    target = torch.randint(0, 500, (32,), device="cuda")
    target[3] = -100
    check_same(
        lambda x: _first(
            LigerCrossEntropyFunction.apply(
                x * 1.0, target, None, -100, 0.0, smoothing, "mean", None, False
            )
        ),
        lambda x: nf.cross_entropy(x, target, label_smoothing=smoothing),
        normal(32, 500),
    )


def fused_linear_cross_entropy() -> None:
    target = torch.randint(0, 400, (32,), device="cuda")
    check_same(
        lambda x, w: _first(LigerFusedLinearCrossEntropyFunction.apply(x, w, target)),
        lambda x, w: nf.cross_entropy(x @ w.T, target),
        normal(32, 64),
        normal(400, 64) * 0.1,
    )


def kl_div() -> None:
    target = normal(16, 200).softmax(-1)
    check_same(
        lambda x: LigerKLDivLossFunction.apply(x, target, "batchmean", False, 1e-10),
        lambda x: nf.kl_div(x, target, reduction="batchmean"),
        normal(16, 200).log_softmax(-1),
    )


def jsd() -> None:
    target = normal(16, 200).log_softmax(-1)

    def definition(x: torch.Tensor) -> torch.Tensor:
        middle = (0.5 * x.exp() + 0.5 * target.exp()).log()
        parts = (nf.kl_div(middle, p, reduction="sum", log_target=True) for p in (target, x))
        return 0.5 * sum(parts) / 16

    check_same(
        lambda x: LigerJSDFunction.apply(x, target, None, 0.5, -100),
        definition,
        normal(16, 200).log_softmax(-1),
    )


def tvd() -> None:
    target = normal(16, 200).softmax(-1)
    check_same(
        lambda x: LigerTVDLossFunction.apply(x, target, None, "batchmean"),
        lambda x: 0.5 * (x - target).abs().sum() / 16,
        normal(16, 200).softmax(-1),
    )


def rope() -> None:
    angles = torch.outer(torch.arange(32.0), 10000 ** (-torch.arange(0, 64, 2) / 64))
    both = torch.cat([angles, angles], -1)[None].to("cuda")
    cos, sin = both.cos(), both.sin()

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x * cos + torch.cat([-x[..., 32:], x[..., :32]], -1) * sin

    k = normal(2, 2, 32, 64)
    check_same(
        lambda q: LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin)[0],
        turned,
        normal(2, 8, 32, 64),
    )


def multi_token_attention() -> None:
    kept = torch.ones(32, 32, dtype=torch.bool, device="cuda").tril()

    def definition(scores: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        weights = scores.masked_fill(~kept, float("-inf")).softmax(-1)
        return nf.conv2d(weights, weight, None, 1, 1).masked_fill(~kept, 0)

    check_same(
        lambda s, w: LigerMultiTokenAttentionFunction.apply(s, w, None, 1, 1, 1, 1, False),
        definition,
        normal(1, 2, 32, 32),
        normal(2, 2, 3, 3),
    )


CASES: dict[str, Case] = {
    "rms_norm": lambda: rms_norm(torch.float32, 2e-3),
    "rms_norm bf16": lambda: rms_norm(torch.bfloat16, 2e-2),
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "poly_norm": poly_norm,
    "fused_add_rms_norm": fused_add_rms_norm,
    "swiglu": swiglu,
    "geglu": geglu,
    "softmax": softmax,
    "sparsemax": sparsemax,
    "dyt": dyt,
    "cross_entropy": lambda: cross_entropy(0.0),
    "cross_entropy, smoothed": lambda: cross_entropy(0.1),
    "fused_linear_cross_entropy": fused_linear_cross_entropy,
    "kl_div": kl_div,
    "jsd": jsd,
    "tvd": tvd,
    "rope": rope,
    "multi_token_attention": multi_token_attention,
}
