"""Kernels of Transformer Engine's extension module, each beside PyTorch's own definition.

The package's Python is not needed: it would call them just so.
"""

import math
import sys
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
import transformer_engine_torch as tex
from torch import Tensor

torch.manual_seed(0)
BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


def same(a: Tensor, b: Tensor, tolerance: float = 0.02) -> None:
    torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance)


def gemm(
    a: Tensor, ta: bool, b: Tensor, tb: bool, out: Tensor | None = None, **how: object
) -> list:
    names = {"dtype": tex.DType.kBFloat16, "bias": None, "gelu": False, "gelu_in": None}
    names |= {"grad": False, "accumulate": False} | how
    workspace = torch.empty(16, dtype=torch.uint8, device="cuda")
    return tex.generic_gemm(
        a, ta, b, tb, out, None, names["dtype"], names["bias"], tex.DType.kBFloat16, names["gelu"],
        names["gelu_in"], names["grad"], workspace, 16, names["accumulate"], False,
    )  # fmt: skip


def products() -> None:
    x, weight, bias = normal(6, 4, 32), normal(48, 32), normal(48)
    y, _, _, _ = gemm(weight, True, x, False, bias=bias)
    assert y.shape == (6, 4, 48)
    same(y, F.linear(x, weight, bias))
    out, _, before, _ = gemm(weight, True, x, False, bias=bias, gelu=True)
    same(before, F.linear(x, weight, bias))
    same(out, F.gelu(F.linear(x, weight, bias).float(), approximate="tanh"), 0.05)
    dy = normal(24, 48)
    same(gemm(weight, False, dy, False)[0], dy @ weight)
    rows = x.reshape(24, 32)
    total = torch.ones(48, 32, device="cuda")
    result, of_bias, _, _ = gemm(
        rows, False, dy, True, total, dtype=tex.DType.kFloat32, grad=True, bias=bias,
        accumulate=True,
    )  # fmt: skip
    assert result is total
    same(total, 1 + dy.float().t() @ rows.float(), 0.05)
    same(of_bias, dy.float().sum(0), 0.05)
    # Groups: experts whose rows follow each other, one of them without any.
    splits, experts = [5, 0, 19], [normal(48, 32) for _ in range(3)]
    whole, parts = normal(24, 48), list(rows.split(splits))
    empty = [torch.empty(0, device="cuda")] * 3
    tex.te_general_grouped_gemm(
        experts, True, parts, False, [whole], tex.DType.kBFloat16, splits, empty,
        tex.DType.kBFloat16, True, empty, False, [empty[0]], 0, False, False, 0,
    )  # fmt: skip
    pairs = zip(parts, experts, strict=True)
    same(whole, torch.cat([part @ expert.t() for part, expert in pairs]))


def norms() -> None:
    x = normal(24, 64).requires_grad_()
    weight, bias = normal(64).requires_grad_(), normal(64).requires_grad_()
    y = F.layer_norm(x.float(), (64,), weight.float() + 1, bias.float(), 1e-5)
    dy = normal(24, 64)
    grads = torch.autograd.grad(y, (x, weight, bias), dy.float())
    raw = x.detach(), weight.detach()
    dtype = tex.DType.kBFloat16
    out, mean, scale = tex.layernorm_fwd(*raw, bias.detach(), 1e-5, None, None, dtype, 0, True)
    same(out, y)
    for result, grad in zip(
        tex.layernorm_bwd(dy, raw[0], mean, scale, raw[1], 0, True), grads, strict=True
    ):
        same(result, grad, 0.05)
    y = F.rms_norm(x.float(), (64,), weight.float(), 1e-5)
    grads = torch.autograd.grad(y, (x, weight), dy.float())
    out, nothing, scale = tex.rmsnorm_fwd(*raw, 1e-5, None, None, dtype, 0, False)
    assert nothing is None
    same(out, y)
    for result, grad in zip(
        tex.rmsnorm_bwd(dy, raw[0], scale, raw[1], 0, False), grads, strict=True
    ):
        same(result, grad, 0.05)
    same(tex.rmsnorm_bwd_add(dy, raw[0], dy, scale, raw[1], 0, False)[0], grads[0] + dy, 0.05)


def activations() -> None:
    x, dy = normal(8, 32).requires_grad_(), normal(8, 16)
    gate, up = x.float().chunk(2, -1)
    for name, y in {
        "swiglu": F.silu(gate) * up,
        "geglu": F.gelu(gate, approximate="tanh") * up,
        "reglu": F.relu(gate) * up,
        "glu": torch.sigmoid(gate) * up,
    }.items():
        same(getattr(tex, name)(x.detach(), None), y)
        (grad,) = torch.autograd.grad(y, x, dy.float(), retain_graph=True)
        same(getattr(tex, f"d{name}")(dy, x.detach(), None), grad)
    y, dy = F.gelu(x.float(), approximate="tanh"), normal(8, 32)
    (grad,) = torch.autograd.grad(y, x, dy.float())
    of_bias, dx = tex.dbias_dgelu(dy, x.detach(), None)
    same(dx, grad)
    same(of_bias, grad.float().sum(0), 0.05)
    scales, dy = torch.rand(8, device="cuda").requires_grad_(), normal(8, 16)
    y = F.silu(gate) * up * scales[:, None]
    same(tex.scaled_swiglu(x.detach(), scales.detach(), None), y)
    grads = torch.autograd.grad(y, (x, scales), dy.float())
    raw = x.detach(), scales.detach()
    for result, grad in zip(tex.scaled_dswiglu(dy, *raw, None), grads, strict=True):
        same(result, grad, 0.05)


def softmaxes() -> None:
    x = normal(2, 3, 8, 12).requires_grad_()
    after = torch.ones(8, 12, dtype=torch.bool, device="cuda").triu(5)
    y = (x.float() * 0.5).masked_fill(after, -math.inf).softmax(-1)
    out = tex.scaled_aligned_causal_masked_softmax_forward(x.detach(), 0.5)
    same(out, y)
    dy = normal(2, 3, 8, 12)
    (grad,) = torch.autograd.grad(y, x, dy.float())
    same(tex.scaled_aligned_causal_masked_softmax_backward(dy, out, 0.5), grad)
    mask = torch.rand(2, 1, 8, 12, device="cuda") > 0.5
    mask[0, 0, 3] = True
    y = (x.detach().float() * 2).masked_fill(mask, -1e4).softmax(-1)
    y = y.masked_fill(mask.all(-1, keepdim=True), 0.0)
    same(tex.scaled_masked_softmax_forward(x.detach(), mask, 2.0), y)


def rotary() -> None:
    freqs = torch.rand(16, 1, 1, 8, device="cuda")
    freqs = torch.cat((freqs, freqs), -1)
    x = normal(16, 2, 3, 24, dtype=torch.float32).requires_grad_()
    first, rest = x[..., :16], x[..., 16:]
    half = torch.cat((-first[..., 8:], first[..., :8]), -1)
    y = torch.cat((first * freqs.cos() + half * freqs.sin(), rest), -1)
    how = (None, tex.NVTE_QKV_Format.NVTE_SBHD, False, None, 1, 0)
    same(tex.fused_rope_forward(x.detach(), freqs, *how), y, 1e-5)
    dy = torch.randn_like(y)
    (grad,) = torch.autograd.grad(y, x, dy)
    same(tex.fused_rope_backward(dy, freqs, *how), grad, 1e-5)
    # Two sequences that follow each other begin at their own place.
    ends = torch.tensor([0, 5, 16], dtype=torch.int32, device="cuda")
    rows = x.detach()[:, 0]
    how = (None, tex.NVTE_QKV_Format.NVTE_THD, False, ends, 1, 0)
    joined = tex.fused_rope_forward(rows, freqs, *how)
    alone = (None, tex.NVTE_QKV_Format.NVTE_SBHD, False, None, 1, 0)
    same(joined[5:], tex.fused_rope_forward(rows[5:, None], freqs, *alone)[:, 0], 1e-5)


def attend(layout: str, q: Tensor, k: Tensor, v: Tensor, ends: list[Tensor], most: int) -> tuple:
    number = getattr(tex.NVTE_QKV_Layout, f"NVTE_{layout}")
    form = tex.NVTE_QKV_Format.NVTE_SBHD
    mask = tex.NVTE_Mask_Type.NVTE_CAUSAL_MASK
    if "THD" in layout:
        mask = tex.NVTE_Mask_Type.NVTE_PADDING_CAUSAL_MASK
    kinds = (tex.NVTE_Bias_Type.NVTE_NO_BIAS, mask, tex.NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX)
    dtype = tex.DType.kBFloat16
    out, *kept = tex.fused_attn_fwd(
        most, most, True, 0.25, 0.0, True, number, form, form, *kinds, (-1, 0), True, *ends, q, k,
        v, dtype, None, None, None, None, None, None, None, None, None, 16, False, False,
    )  # fmt: skip
    dy = normal(*out.shape)
    grads = tex.fused_attn_bwd(
        most, most, 0.25, 0.0, True, number, form, form, number, form, form, *kinds, (-1, 0), True,
        False, *ends, q, k, v, out, dy, dtype, kept, None, None, None, None, None, False,
    )  # fmt: skip
    return out, dy, grads[:3]


def attention() -> None:
    packed = normal(32, 2, 3, 4, 16)
    q, k, v = packed.unbind(2)
    ends = [torch.tensor([0, 32, 64], dtype=torch.int32, device="cuda")] * 2
    out, dy, grads = attend("SB3HD", q, k, v, ends, 32)
    leaves = [x.float().permute(1, 2, 0, 3).detach().requires_grad_() for x in (q, k, v)]
    y = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.25)
    same(out, y.permute(2, 0, 1, 3))
    expected = torch.autograd.grad(y, leaves, dy.float().permute(1, 2, 0, 3))
    for grad, other in zip(grads, expected, strict=True):
        same(grad, other.permute(2, 0, 1, 3), 0.05)
    # They lie where the gradient of what was packed is one view of all three.
    assert len({grad.untyped_storage().data_ptr() for grad in grads}) == 1
    # Sequences of several lengths, whose heads share keys.
    ends = [torch.tensor([0, 7, 20], dtype=torch.int32, device="cuda")] * 2
    q, k, v = normal(20, 4, 16), normal(20, 2, 16), normal(20, 2, 16)
    out, dy, grads = attend("THD_THD_THD", q, k, v, ends, 13)
    for span in (slice(0, 7), slice(7, 20)):
        leaves = [x[span].float().transpose(0, 1).detach().requires_grad_() for x in (q, k, v)]
        y = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.25, enable_gqa=True)
        same(out[span], y.transpose(0, 1))
        expected = torch.autograd.grad(y, leaves, dy[span].float().transpose(0, 1))
        for grad, other in zip(grads, expected, strict=True):
            same(grad[span], other.transpose(0, 1), 0.05)


def optimizers() -> None:
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    shapes = ((5, 3), (7,))
    start = [normal(*shape, dtype=torch.float32) for shape in shapes]
    grad = [normal(*shape, dtype=torch.float32) for shape in shapes]
    plain = [x.clone().requires_grad_() for x in start]
    adam = torch.optim.AdamW(plain, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    halves = [x.to(BF16) for x in start]
    moments = [[torch.zeros_like(x) for x in start] for _ in range(2)]
    lists = [grad, halves, *moments, [x.clone() for x in start]]
    for step in (1, 2):
        for leaf, g in zip(plain, grad, strict=True):
            leaf.grad = g
        adam.step()
        tex.multi_tensor_adam(65536, flag, lists, 0.01, 0.9, 0.95, 1e-8, step, 1, 1, 0.1)
    for leaf, master, half in zip(plain, lists[4], lists[1], strict=True):
        same(master, leaf, 1e-6)
        same(half, leaf)
    whole, each = tex.multi_tensor_l2norm(65536, flag, [grad], True)
    same(whole[0], torch.cat([g.flatten() for g in grad]).norm(), 1e-6)
    same(each, torch.stack([g.norm() for g in grad]), 1e-6)
    halves = [torch.empty_like(g, dtype=BF16) for g in grad]
    tex.multi_tensor_scale(65536, flag, [grad, halves], 0.5)
    same(halves[0], grad[0] / 2)
    assert not flag.item()
    grad[1][2] = math.inf
    tex.multi_tensor_scale(65536, flag, [grad, halves], 0.5)
    assert flag.item()


class Float8Quantizer:
    """The fields of the package's quantizer that C++ reads."""

    rowwise_usage = columnwise_usage = internal = True
    dtype = tex.DType.kFloat8E4M3

    def __init__(self, scale: float) -> None:
        self.scale = torch.full((1,), scale, device="cuda")
        self.amax = torch.zeros(1, device="cuda")


class Float8CurrentScalingQuantizer(Float8Quantizer):
    force_pow_2_scales = with_amax_reduction = False
    amax_epsilon = 0.0


class Float8TensorStorage:
    """The fields of the package's tensor."""

    def __init__(self, data: Any, data_transpose: Any, fp8_scale_inv: Any, **how: Any) -> None:
        self._data, self._transpose, self._scale_inv = data, data_transpose, fp8_scale_inv
        self._fp8_dtype, self._transpose_invalid = how["fp8_dtype"], False


def eight_bits() -> None:
    # Where C++ finds the class of the tensors that it makes.
    name = "transformer_engine.pytorch.tensor.storage.float8_tensor_storage"
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules[".".join(parts[:end])] = ModuleType(".".join(parts[:end]))
    vars(sys.modules[name])["Float8TensorStorage"] = Float8TensorStorage
    x, weight, dy = normal(24, 32), normal(48, 32), normal(24, 48)
    half = tex.DType.kBFloat16
    rounded = {}
    for quantizer in (Float8Quantizer(16.0), Float8CurrentScalingQuantizer(1.0)):
        for key, tensor in {"x": x, "w": weight, "dy": dy}.items():
            rounded[key] = tex.quantize(tensor, quantizer)
            wide = tex.dequantize(rounded[key], tex.DType.kFloat32)
            # Three bits behind the first.
            same(wide, tensor, 1 / 16)
            assert (wide != tensor).any()
            turned = tex.fp8_transpose(rounded[key]._data, quantizer.dtype, out=None)
            assert turned.equal(rounded[key]._transpose)
        if type(quantizer) is Float8Quantizer:
            largest = max(tensor.abs().max() for tensor in (x, weight, dy))
            assert quantizer.amax == largest
        plain = {key: tex.dequantize(tensor, half) for key, tensor in rounded.items()}
        same(gemm(rounded["w"], True, rounded["x"], False)[0], plain["x"] @ plain["w"].t(), 0.05)
        same(gemm(rounded["w"], False, rounded["dy"], False)[0], plain["dy"] @ plain["w"], 0.05)
        result = gemm(rounded["x"], False, rounded["dy"], True, grad=True, bias=weight)
        same(result[0], plain["dy"].t() @ plain["x"], 0.05)
        same(result[1], plain["dy"].float().sum(0), 0.05)
    # What a norm or an activation writes in 8 bits is what it would have written, rounded.
    quantizer = Float8Quantizer(32.0)
    gamma = torch.ones(32, dtype=BF16, device="cuda")
    out, _, _ = tex.rmsnorm_fwd(x, gamma, 1e-5, None, quantizer, half, 0, False)
    same(tex.dequantize(out, half), F.rms_norm(x, (32,)), 1 / 16)
    same(quantizer.amax[0], F.rms_norm(x, (32,)).abs().max(), 0.01)
    # Of a history the largest number makes the next scale; the oldest gives way.
    history = torch.tensor([[0.0, 0.0], [7.0, 0.0], [28.0, 0.0]], device="cuda")
    scale = torch.ones(2, device="cuda")
    tex.fused_amax_and_scale_update_after_reduction(
        torch.tensor([14.0, 0.0], device="cuda"), [history], [scale], "max", quantizer.dtype, 0
    )
    assert scale.tolist() == [16.0, 1.0]
    assert history[:, 0].tolist() == [0.0, 28.0, 14.0]


for part in (products, norms, activations, softmaxes, rotary, attention, optimizers, eight_bits):
    part()
