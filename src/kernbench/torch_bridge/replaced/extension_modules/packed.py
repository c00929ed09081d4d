"""Products with weights of few bits: GPTQ's and AWQ's forms, and Marlin's and Machete's of them.

Weights are what the format says, rounded to the dtype of the rows, as kernels hold them. Where the
order of numbers inside of a word is a kernel's own, and nothing but its product reads it
(``gptq_shuffle``, ``machete_prepack_B``), it stays as it was.

Source: GPTQ (AutoGPTQ) and AWQ (AutoAWQ) pack numbers as their layers do; Marlin (Frantar et al.,
2024) orders them by the fragments of ``mma.m16n8k16`` (PTX ISA), interleaved for its conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    as_product,
    defines,
    makes,
    streams,
)

_WORD = 32
_OF_AWQ = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}
"""The columns of the numbers in a word, from its lowest bits; Marlin interleaves so, too."""
_TILE = 16
"""Rows of a tile of Marlin's, and columns of each of the four beside each other that warps load."""


class NumberKind(NamedTuple):
    """A kind of packed numbers, as vLLM's ``ScalarType.id`` has it in bits."""

    exponent: int
    mantissa: int
    bias: int

    @property
    def bits(self) -> int:
        return self.exponent + self.mantissa + (1 if self.exponent else 0)

    @property
    def is_integer(self) -> bool:
        return not self.exponent


def kind_of(number: int) -> NumberKind:
    """Return the kind of numbers that the number of a ``ScalarType`` is of.

    Raises:
        UnsupportedTorchError: It is neither of unsigned integers nor of FP8 (E4M3).
    """
    exponent, mantissa, signed = number & 255, number >> 8 & 255, number >> 16 & 1
    bias = number >> 17 & 0xFFFFFFFF
    if (exponent or signed) and (exponent, mantissa) != (4, 3):
        raise UnsupportedTorchError(
            f"weights of a ScalarType with {exponent} bits of exponent and {mantissa} of mantissa: "
            "kernbench unpacks unsigned integers and FP8 (E4M3); use a checkpoint of these"
        )
    return NumberKind(exponent, mantissa, bias)


def unpacked(words: Tensor, bits: int, dim: int) -> Tensor:
    """Return the numbers that lie one after another in words along a dim, lowest bits first.

    They may cross the borders of words, as GPTQ's of 3 bits do.
    """
    wide = words.movedim(dim, -1).to(torch.int64) & 0xFFFFFFFF
    count = wide.shape[-1] * _WORD // bits
    starts = torch.arange(count) * bits
    at, shift = starts // _WORD, starts % _WORD
    after = wide[..., (at + 1).clamp(max=wide.shape[-1] - 1)] << _WORD
    return ((wide[..., at] | after) >> shift & ((1 << bits) - 1)).movedim(-1, dim)


def packed(numbers: Tensor, bits: int) -> Tensor:
    """Return words of numbers that lie one after another in rows."""
    word = _WORD // bits
    parts = numbers.to(torch.int64).unflatten(-1, (-1, word))
    words = (parts << torch.arange(word) * bits).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def of_awq(words: Tensor, bits: int = 4) -> Tensor:
    """Return AWQ's numbers ``(rows, columns)``."""
    order, columns = _OF_AWQ[bits], unpacked(words, bits, 1)
    places = torch.tensor(order).argsort()
    return columns.unflatten(1, (-1, len(order)))[:, :, places].flatten(1)


def _grouped(scales: Tensor, rows: int) -> Tensor:
    """Return scales of groups of rows for each row."""
    return scales.repeat_interleave(rows // scales.shape[0], 0)


def _of_gptq(words: Tensor, zeros: Tensor, scales: Tensor, bits: int, least: int) -> Tensor:
    numbers = unpacked(words, bits, 0)
    of_groups = unpacked(zeros, bits, 1) + least
    wide = (numbers - _grouped(of_groups, numbers.shape[0])).float()
    return (wide * _grouped(scales.float(), numbers.shape[0])).to(scales.dtype)


def _awq_weights(words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    numbers = of_awq(words)
    wide = (numbers - _grouped(of_awq(zeros), numbers.shape[0])).float()
    return (wide * _grouped(scales.float(), numbers.shape[0])).to(scales.dtype)


def multiplied(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a product with sums in float32."""
    result = rows.float() @ weight.to(rows.dtype).float()
    return result if bias is None else result + bias.float()


def _by_weights(*names: str, k: Callable[..., int]) -> Callable[..., Any]:
    """Return the timing of a product whose weights are the arguments of these names."""

    def timing(func: Any, out: Tensor, **named: Any) -> Callable[[int], Any]:
        n, length = out.shape[-1], k(**named)
        bytes_of = num_bytes([named[name] for name in names]) / (n * length)
        sizes = ((1, out.numel() // n, n, length),) if out.numel() and length else ()
        return as_product(func, sizes, out.dtype, out.dtype, weight_bytes=bytes_of)

    return timing


@makes(
    "gptq_gemm",
    result=lambda a, b_q_weight, **_: a.new_empty(a.shape[0], b_q_weight.shape[1]),
    timing=_by_weights("b_q_weight", "b_gptq_qzeros", "b_gptq_scales", k=lambda a, **_: a.shape[1]),
)
def _gptq_gemm(
    out: Tensor,
    /,
    a: Tensor,
    b_q_weight: Tensor,
    b_gptq_qzeros: Tensor,
    b_gptq_scales: Tensor,
    bit: int,
    use_v2_format: bool = False,
    use_exllama: bool = True,
    use_shuffle: bool = True,
    b_g_idx: Tensor | None = None,
) -> None:
    if b_g_idx is not None and b_g_idx.numel():
        raise UnsupportedTorchError(
            "gptq_gemm with groups in the order of activations (desc_act): kernbench defines "
            "groups of rows beside each other; use a checkpoint without desc_act"
        )
    # Version 1 of the format stores zeros less one.
    weight = _of_gptq(b_q_weight, b_gptq_qzeros, b_gptq_scales, bit, 0 if use_v2_format else 1)
    out.copy_(multiplied(a, weight))


@streams("gptq_shuffle", over=("q_weight",))
def _gptq_shuffle(q_weight: Tensor, bit: int, q_perm: Tensor | None = None) -> None:
    pass


@makes(
    "awq_gemm",
    result=lambda _in_feats, _kernel, **_: _in_feats.new_empty(
        _in_feats.shape[0], _kernel.shape[1] * 8
    ),
    timing=_by_weights(
        "_kernel", "_scaling_factors", "_zeros", k=lambda _kernel, **_: _kernel.shape[0]
    ),
)
def _awq_gemm(
    out: Tensor,
    /,
    _in_feats: Tensor,
    _kernel: Tensor,
    _scaling_factors: Tensor,
    _zeros: Tensor,
    split_k_iters: int,
) -> None:
    out.copy_(multiplied(_in_feats, _awq_weights(_kernel, _zeros, _scaling_factors)))


def _wide_awq(_kernel: Tensor, _scaling_factors: Tensor, **_: Any) -> Tensor:
    return _scaling_factors.new_empty(_kernel.shape[0], _kernel.shape[1] * 8)


@makes("awq_dequantize", result=_wide_awq)
def _awq_dequantize(
    out: Tensor,
    /,
    _kernel: Tensor,
    _scaling_factors: Tensor,
    _zeros: Tensor,
    split_k_iters: int,
    thx: int,
    thy: int,
) -> None:
    out.copy_(_awq_weights(_kernel, _zeros, _scaling_factors))


@makes(
    "sgl_kernel::awq_dequantize",
    result=lambda qweight, scales, **_: _wide_awq(qweight, scales),
)
def _sgl_awq_dequantize(out: Tensor, /, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> None:
    out.copy_(_awq_weights(qweight, qzeros, scales))


def _order(bits: int) -> Tensor:
    """Return where in a tile of 16 rows, and 64 columns by 16, each of Marlin's numbers is from.

    A thread of a warp holds, of each 16 columns, rows ``2i, 2i+1, 2i+8, 2i+9`` of column ``j`` and
    of column ``j + 8``: its fragments of two products.
    """
    thread, part = torch.arange(32)[:, None], torch.arange(8)
    row = 2 * (thread % 4) + part % 2 + 8 * (part % 4 // 2)
    places = _TILE * row + thread // 4 + 8 * (part // 4)
    of_tiles = places[:, None] + torch.arange(4)[None, :, None] * _TILE * _TILE
    interleave = _OF_AWQ[bits]
    return of_tiles.reshape(-1, len(interleave))[:, interleave].flatten()


def to_marlin(numbers: Tensor, bits: int) -> Tensor:
    """Return words of numbers ``(k, n)`` in Marlin's order, ``(k / 16, n * bits / 2)``."""
    k, n = numbers.shape
    tiles = numbers.view(k // _TILE, _TILE, n // _TILE, _TILE).transpose(1, 2)
    order = _order(bits)
    return packed(tiles.reshape(-1, order.numel())[:, order].view(k // _TILE, n * _TILE), bits)


def of_marlin(words: Tensor, bits: int, k: int, n: int) -> Tensor:
    """Return the numbers of :func:`to_marlin`."""
    order = _order(bits)
    tiles = unpacked(words, bits, 1).reshape(-1, order.numel())[:, order.argsort()]
    return tiles.view(k // _TILE, n // _TILE, _TILE, _TILE).transpose(1, 2).reshape(k, n)


_OF_GROUPS = torch.arange(64, device="cpu").view(8, 8).t().flatten()
_OF_COLUMNS = torch.tensor([2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)])
"""Marlin's orders of scales: beside products, and after them."""


def _in_order(scales: Tensor, order: Tensor) -> Tensor:
    """Return scales in the order of columns."""
    return scales.reshape(-1, order.numel())[:, order.argsort()].view(scales.shape)


def marlin_weights(
    words: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    kind: NumberKind,
    k: int,
    n: int,
    is_zp_float: bool = False,
) -> Tensor:
    """Return weights ``(k, n)`` in float32."""
    numbers = of_marlin(words, kind.bits, k, n)
    wide = _in_order(scales, _OF_COLUMNS if scales.shape[0] == 1 else _OF_GROUPS).float()
    if not kind.is_integer:
        # Its conversion leaves the difference of the exponents' biases to the scales.
        less = 2.0 ** -(8 if scales.dtype == torch.float16 else 120)
        of_bits = numbers.to(torch.uint8).view(torch.float8_e4m3fn).float()
        return of_bits * _grouped(wide * less, k)
    if zeros is None or not zeros.numel():
        return (numbers - kind.bias).float() * _grouped(wide, k)
    if is_zp_float:
        less = _grouped(_in_order(zeros, _OF_GROUPS).float(), k)
        return numbers.float() * _grouped(wide, k) - less
    interleave = torch.tensor(_OF_AWQ[kind.bits])
    of_zeros = unpacked(zeros, kind.bits, 1).unflatten(1, (-1, interleave.numel()))
    of_zeros = _in_order(of_zeros[:, :, interleave.argsort()].flatten(1), _OF_GROUPS)
    return (numbers - _grouped(of_zeros, k)).float() * _grouped(wide, k)


def _repacked(b_q_weight: Tensor, size_k: int, size_n: int, num_bits: int, **_: Any) -> Tensor:
    return b_q_weight.new_empty(size_k // _TILE, size_n * _TILE * num_bits // _WORD)


def check_rows_of_16_bits(name: str, is_a_8bit: bool) -> None:
    """Refuse rows of 8 bits, for which Marlin orders weights otherwise."""
    if is_a_8bit:
        raise UnsupportedTorchError(
            f"{name} with activations of 8 bits: kernbench defines Marlin's products of rows of 16 "
            "bits; leave the dtype of activations (VLLM_MARLIN_INPUT_DTYPE) out"
        )


@makes("gptq_marlin_repack", result=_repacked)
def _gptq_marlin_repack(
    out: Tensor,
    /,
    b_q_weight: Tensor,
    size_k: int,
    size_n: int,
    num_bits: int,
    perm: Tensor | None = None,
    is_a_8bit: bool = False,
) -> None:
    check_rows_of_16_bits("gptq_marlin_repack", is_a_8bit)
    numbers = unpacked(b_q_weight, num_bits, 0)
    if perm is not None and perm.numel():
        numbers = numbers[perm.long()]
    out.copy_(to_marlin(numbers, num_bits))


@makes("awq_marlin_repack", result=_repacked)
def _awq_marlin_repack(
    out: Tensor,
    /,
    b_q_weight: Tensor,
    size_k: int,
    size_n: int,
    num_bits: int,
    is_a_8bit: bool = False,
) -> None:
    check_rows_of_16_bits("awq_marlin_repack", is_a_8bit)
    out.copy_(to_marlin(of_awq(b_q_weight, num_bits), num_bits))


def _marlin_result(a: Tensor, c_or_none: Tensor | None, size_n: int, **_: Any) -> Tensor:
    return a.new_empty(a.shape[0], size_n) if c_or_none is None else c_or_none


@makes(
    "marlin_gemm",
    "gptq_marlin_gemm",
    result=_marlin_result,
    timing=_by_weights(
        "b_q_weight", "b_scales", "b_zeros_or_none", k=lambda size_k, **_: int(size_k)
    ),
)
def _marlin_gemm(
    out: Tensor,
    /,
    a: Tensor,
    c_or_none: Tensor | None,
    b_q_weight: Tensor,
    b_scales: Tensor,
    b_zeros_or_none: Tensor | None,
    workspace: Tensor,
    size_m: int,
    size_n: int,
    size_k: int,
    use_atomic_add: bool,
    use_fp32_reduce: bool,
    is_zp_float: bool,
    b_type_id: int = 0,
    b_q_type_id: int = 0,
    b_bias_or_none: Tensor | None = None,
    is_k_full: bool = True,
) -> None:
    kind = kind_of(b_type_id or b_q_type_id)
    weight = marlin_weights(
        b_q_weight, b_scales, b_zeros_or_none, kind, size_k, size_n, is_zp_float
    )
    bias = None if b_bias_or_none is None else _in_order(b_bias_or_none, _OF_COLUMNS)
    out.copy_(multiplied(a, weight, bias))


@makes("machete_prepack_B", result=lambda B, **_: torch.empty_like(B))  # noqa: N803
def _machete_prepack(
    out: Tensor,
    /,
    B: Tensor,  # noqa: N803
    a_type: Any,
    b_type: int,
    group_scales_type: Any,
) -> None:
    out.copy_(B)


def _machete_result(
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    out_type: torch.dtype | None,
    **_: Any,
) -> Tensor:
    return A.new_empty(A.shape[0], B.shape[1], dtype=out_type or A.dtype)


@makes(
    "machete_mm",
    result=_machete_result,
    timing=_by_weights("B", "group_scales", "group_zeros", k=lambda A, **_: A.shape[1]),  # noqa: N803
)
def _machete_mm(
    out: Tensor,
    /,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    b_type: int,
    out_type: torch.dtype | None,
    group_scales: Tensor | None,
    group_zeros: Tensor | None,
    group_size: int | None,
    channel_scales: Tensor | None,
    token_scales: Tensor | None,
    schedule: str | None,
) -> None:
    kind = kind_of(b_type)
    weight = (unpacked(B, kind.bits, 0) - kind.bias).float()
    if group_scales is not None:
        weight = weight * _grouped(group_scales.float(), weight.shape[0])
    if group_zeros is not None:
        # They are scaled.
        weight = weight + _grouped(group_zeros.float(), weight.shape[0])
    if channel_scales is not None:
        weight = weight * channel_scales.float().view(1, -1)
    result = multiplied(A, weight)
    out.copy_(result if token_scales is None else result * token_scales.float().view(-1, 1))


@defines("machete_supported_schedules", on_host=True)
def _machete_schedules(
    asked: Any,
    a_type: Any,
    b_type: int,
    maybe_group_scales_type: Any,
    maybe_group_zeros_type: Any,
    maybe_channel_scales_type: Any,
    maybe_token_scales_type: Any,
    maybe_out_type: Any,
) -> list[str]:
    # The library chooses.
    return []
