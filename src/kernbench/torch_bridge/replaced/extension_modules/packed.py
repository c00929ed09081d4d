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
from kernbench.torch_bridge.processes.of_all import OperatorCall
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


def _by_weights(
    *names: str, k: Callable[[OperatorCall], int]
) -> Callable[[OperatorCall, Tensor], Callable[[int], Any]]:
    """Return the timing of a product whose weights are the arguments of these names."""

    def timing(call: OperatorCall, out: Tensor) -> Callable[[int], Any]:
        n, length = out.shape[-1], k(call)
        bytes_of = num_bytes([call.named[name] for name in names]) / (n * length)
        sizes = ((1, out.numel() // n, n, length),) if out.numel() and length else ()
        return as_product(call.func, sizes, out.dtype, out.dtype, weight_bytes=bytes_of)

    return timing


@makes(
    "gptq_gemm",
    takes=(
        "a b_q_weight b_gptq_qzeros b_gptq_scales bit use_v2_format use_exllama use_shuffle b_g_idx"
    ),
    result=lambda call: call.a.new_empty(call.a.shape[0], call.b_q_weight.shape[1]),
    timing=_by_weights(
        "b_q_weight", "b_gptq_qzeros", "b_gptq_scales", k=lambda call: call.a.shape[1]
    ),
)
def _gptq_gemm(out: Tensor, call: OperatorCall) -> None:
    if call.b_g_idx is not None and call.b_g_idx.numel():
        raise UnsupportedTorchError(
            "gptq_gemm with groups in the order of activations (desc_act): kernbench defines "
            "groups of rows beside each other; use a checkpoint without desc_act"
        )
    # Version 1 of the format stores zeros less one.
    least, zeros = 0 if call.use_v2_format else 1, call.b_gptq_qzeros
    weight = _of_gptq(call.b_q_weight, zeros, call.b_gptq_scales, call.bit, least)
    out.copy_(multiplied(call.a, weight))


@streams("gptq_shuffle", takes="q_weight bit q_perm", over=("q_weight",))
def _gptq_shuffle(call: OperatorCall) -> None:
    pass


@makes(
    "awq_gemm",
    takes="_in_feats _kernel _scaling_factors _zeros split_k_iters",
    result=lambda call: call._in_feats.new_empty(
        call._in_feats.shape[0], call._kernel.shape[1] * 8
    ),
    timing=_by_weights(
        "_kernel", "_scaling_factors", "_zeros", k=lambda call: call._kernel.shape[0]
    ),
)
def _awq_gemm(out: Tensor, call: OperatorCall) -> None:
    weight = _awq_weights(call._kernel, call._zeros, call._scaling_factors)
    out.copy_(multiplied(call._in_feats, weight))


def _wide_awq(words: Tensor, scales: Tensor) -> Tensor:
    return scales.new_empty(words.shape[0], words.shape[1] * 8)


@makes(
    "awq_dequantize",
    takes="_kernel _scaling_factors _zeros split_k_iters thx thy",
    result=lambda call: _wide_awq(call._kernel, call._scaling_factors),
)
def _awq_dequantize(out: Tensor, call: OperatorCall) -> None:
    out.copy_(_awq_weights(call._kernel, call._zeros, call._scaling_factors))


@makes(
    "sgl_kernel::awq_dequantize",
    takes="qweight scales qzeros",
    result=lambda call: _wide_awq(call.qweight, call.scales),
)
def _sgl_awq_dequantize(out: Tensor, call: OperatorCall) -> None:
    out.copy_(_awq_weights(call.qweight, call.qzeros, call.scales))


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


def _repacked(call: OperatorCall) -> Any:
    shape = call.size_k // _TILE, call.size_n * _TILE * call.num_bits // _WORD
    return call.b_q_weight.new_empty(shape)


def check_rows_of_16_bits(name: str, is_a_8bit: bool) -> None:
    """Refuse rows of 8 bits, for which Marlin orders weights otherwise."""
    if is_a_8bit:
        raise UnsupportedTorchError(
            f"{name} with activations of 8 bits: kernbench defines Marlin's products of rows of 16 "
            "bits; leave the dtype of activations (VLLM_MARLIN_INPUT_DTYPE) out"
        )


@makes(
    "gptq_marlin_repack", takes="b_q_weight size_k size_n num_bits perm is_a_8bit", result=_repacked
)
def _gptq_marlin_repack(out: Tensor, call: OperatorCall) -> None:
    check_rows_of_16_bits("gptq_marlin_repack", call.is_a_8bit)
    numbers = unpacked(call.b_q_weight, call.num_bits, 0)
    if call.perm is not None and call.perm.numel():
        numbers = numbers[call.perm.long()]
    out.copy_(to_marlin(numbers, call.num_bits))


@makes("awq_marlin_repack", takes="b_q_weight size_k size_n num_bits is_a_8bit", result=_repacked)
def _awq_marlin_repack(out: Tensor, call: OperatorCall) -> None:
    check_rows_of_16_bits("awq_marlin_repack", call.is_a_8bit)
    out.copy_(to_marlin(of_awq(call.b_q_weight, call.num_bits), call.num_bits))


def _marlin_result(call: OperatorCall) -> Any:
    if call.c_or_none is not None:
        return call.c_or_none
    return call.a.new_empty(call.a.shape[0], call.size_n)


@makes(
    "marlin_gemm",
    "gptq_marlin_gemm",
    takes=(
        "a c_or_none b_q_weight b_scales b_zeros_or_none workspace size_m size_n size_k "
        "use_atomic_add use_fp32_reduce is_zp_float b_type_id b_q_type_id b_bias_or_none "
        "is_k_full"
    ),
    result=_marlin_result,
    timing=_by_weights(
        "b_q_weight", "b_scales", "b_zeros_or_none", k=lambda call: int(call.size_k)
    ),
)
def _marlin_gemm(out: Tensor, call: OperatorCall) -> None:
    kind = kind_of(call.b_type_id or call.b_q_type_id)
    packed_as = call.b_q_weight, call.b_scales, call.b_zeros_or_none, kind
    weight = marlin_weights(*packed_as, call.size_k, call.size_n, call.is_zp_float)
    bias = None if call.b_bias_or_none is None else _in_order(call.b_bias_or_none, _OF_COLUMNS)
    out.copy_(multiplied(call.a, weight, bias))


@makes(
    "machete_prepack_B",
    takes="B a_type b_type group_scales_type",
    result=lambda call: torch.empty_like(call.B),
)
def _machete_prepack(out: Tensor, call: OperatorCall) -> None:
    out.copy_(call.B)


@makes(
    "machete_mm",
    takes=(
        "A B b_type out_type group_scales group_zeros group_size channel_scales token_scales "
        "schedule"
    ),
    result=lambda call: call.A.new_empty(
        call.A.shape[0], call.B.shape[1], dtype=call.out_type or call.A.dtype
    ),
    timing=_by_weights("B", "group_scales", "group_zeros", k=lambda call: call.A.shape[1]),
)
def _machete_mm(out: Tensor, call: OperatorCall) -> None:
    kind = kind_of(call.b_type)
    weight = (unpacked(call.B, kind.bits, 0) - kind.bias).float()
    if call.group_scales is not None:
        weight = weight * _grouped(call.group_scales.float(), weight.shape[0])
    if call.group_zeros is not None:
        # They are scaled.
        weight = weight + _grouped(call.group_zeros.float(), weight.shape[0])
    if call.channel_scales is not None:
        weight = weight * call.channel_scales.float().view(1, -1)
    result = multiplied(call.A, weight)
    out.copy_(
        result if call.token_scales is None else result * call.token_scales.float().view(-1, 1)
    )


@defines(
    "machete_supported_schedules",
    takes=(
        "a_type b_type maybe_group_scales_type maybe_group_zeros_type "
        "maybe_channel_scales_type maybe_token_scales_type maybe_out_type"
    ),
    on_host=True,
)
def _machete_schedules(call: OperatorCall) -> list[str]:
    # The library chooses.
    return []
