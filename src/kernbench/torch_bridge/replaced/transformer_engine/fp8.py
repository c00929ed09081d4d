"""Transformer Engine's 8-bit tensors with one scale: what kernels read of them, and write to them.

Source: ``Float8Quantizer`` and ``Float8CurrentScalingQuantizer`` of the extension's
``quantizer.cpp``; ``delayed_scaling.cu`` and ``current_scaling.cu`` of
``transformer_engine/common/recipe``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.transformer_engine.kernels import (
    is_plain,
    launch,
    refuse_quantized,
    torch_dtype,
)

_TENSORS = "transformer_engine.pytorch.tensor"
_DELAYED, _CURRENT = "Float8Quantizer", "Float8CurrentScalingQuantizer"
_SCALED = ("Float8Tensor", "Float8TensorStorage")


def is_scaled(x: Any) -> bool:
    """Return whether a tensor has 8 bits and one scale."""
    return type(x).__name__ in _SCALED


class Operand(NamedTuple):
    """What a product reads of an operand."""

    data: Tensor
    """Rows: a matrix, or one of more dims whose last are its columns."""
    is_turned: bool
    shape: tuple[int, ...]
    """The operand's own."""
    scale: Tensor | None = None
    """The inverse of what its numbers were multiplied by."""


def operand(name: str, x: Any, is_turned: bool, *, by_rows: bool) -> Operand:
    """Return what a product reads of a tensor, along whose rows it goes (``by_rows``) or not."""
    if not is_scaled(x):
        refuse_quantized(name, x)
        return Operand(x, is_turned, tuple(x.shape))
    numbers = torch_dtype(x._fp8_dtype, torch.float8_e4m3fn)
    if x._data is not None and (by_rows or _multiplies_any() or x._transpose_invalid):
        return Operand(x._data.view(numbers), is_turned, tuple(x._data.shape), x._scale_inv)
    columns, *rows = x._transpose.shape
    turned = x._transpose.view(numbers).reshape(columns, -1)
    return Operand(turned, not is_turned, (*rows, columns), x._scale_inv)


def widened(data: Tensor, scale: Tensor | None) -> Tensor:
    """Return numbers in float32."""
    return data.float() if scale is None else data.float() * scale


def _multiplies_any() -> bool:
    """Return whether products take 8-bit operands whose columns lie one after another, too."""
    capability = current().session.run.machine.spec.cuda_architecture or 0
    return 100 <= capability < 120 or capability >= 130


class Target:
    """A result: a tensor, or an 8-bit one that its kernel writes, or one that another kernel does.

    Delayed scaling has its scale before the kernel runs; current scaling needs the largest number
    of all that the kernel has written.
    """

    def __init__(
        self, name: str, shape: Sequence[int], like: Tensor, dtype: torch.dtype, quantizer: Any,
        into: Any = None,
    ) -> None:  # fmt: skip
        self._quantizer, self._is_fused = quantizer, type(quantizer).__name__ == _DELAYED
        self._into = into
        if quantizer is not None and type(quantizer).__name__ not in (_DELAYED, _CURRENT):
            refuse_quantized(name, quantizer)
        self.value: Any
        """What is returned, after :meth:`finish`."""
        self.read: tuple[Tensor, ...] = ()
        """What the kernel reads besides, the first of what is stored with."""
        if self._is_fused:
            self.value = empty(quantizer, shape, dtype, like) if into is None else into
            self.written = [*_parts(self.value), self.value._scale_inv, quantizer.amax]
            self.read = (quantizer.scale,)
            return
        plain = into if is_plain(into) else None
        self.value = like.new_empty(tuple(shape), dtype=dtype) if plain is None else plain
        self.written = [self.value]

    def store(self, wide: Tensor, *tensors: Tensor) -> None:
        """Write numbers; ``tensors`` are what is read and written, in their order."""
        if not self._is_fused:
            tensors[0].copy_(wide.reshape(tensors[0].shape))
            return
        scale, *written = tensors
        *parts, scale_inv, amax = written
        amax.copy_(torch.maximum(amax.float(), wide.abs().max()))
        _cast(wide, scale, parts, scale_inv, self.value, self._quantizer)

    def finish(self) -> Any:
        """Return the result, cast by kernels of their own if its kernel could not."""
        if self._is_fused or self._quantizer is None:
            return self.value
        return quantize(self.value, self._quantizer, self._into)


def _cast(
    wide: Tensor, scale: Tensor, parts: Sequence[Tensor], scale_inv: Tensor, value: Any,
    quantizer: Any,
) -> None:  # fmt: skip
    numbers, most = torch_dtype(quantizer.dtype, torch.float8_e4m3fn), _largest(quantizer.dtype)
    cast = (wide * scale).clamp(-most, most).to(numbers).view(torch.uint8)
    rows = cast.reshape(-1, cast.shape[-1])
    for place, part in zip(_parts(value), parts, strict=True):
        part.copy_((rows if place is value._data else rows.t()).reshape(part.shape))
    scale_inv.copy_(scale.reciprocal().reshape(scale_inv.shape))
    value._transpose_invalid = value._transpose is None


def _parts(value: Any) -> list[Tensor]:
    """Return the bytes of an 8-bit tensor: its rows, its columns, or both."""
    return [part for part in (value._data, value._transpose) if part is not None]


def _largest(dtype: Any) -> float:
    """Return the largest number of a ``DType`` of 8 bits."""
    return torch.finfo(torch_dtype(dtype, torch.float8_e4m3fn)).max


def empty(quantizer: Any, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Any:
    """Return an 8-bit tensor of a quantizer without contents."""
    shape, any_layout = tuple(shape), _multiplies_any()
    data = turned = None
    if quantizer.rowwise_usage or any_layout:
        data = like.new_empty(shape, dtype=torch.uint8)
    if quantizer.columnwise_usage and not any_layout:
        turned = like.new_empty((shape[-1], *shape[:-1]), dtype=torch.uint8)
    how = {
        "data": data,
        "data_transpose": turned,
        "fp8_scale_inv": like.new_empty(1, dtype=torch.float32),
        "fp8_dtype": quantizer.dtype,
        "quantizer": quantizer,
    }
    if quantizer.internal:
        storage = import_module(f"{_TENSORS}.storage.float8_tensor_storage").Float8TensorStorage
        return storage(fake_dtype=dtype, **how)
    tensor = import_module(f"{_TENSORS}.float8_tensor").Float8Tensor
    return tensor(shape=shape, dtype=dtype, device=like.device, **how)


def create_empty_quantized_tensor(
    quantizer: Any, shape: Sequence[int], dtype: torch.dtype, device: Any, pin_memory: bool
) -> Any:
    """Return a tensor of a quantizer without contents."""
    if type(quantizer).__name__ not in (_DELAYED, _CURRENT):
        refuse_quantized("create_empty_quantized_tensor", quantizer)
    where = torch.empty(0, device=device, pin_memory=pin_memory)
    return empty(quantizer, shape, dtype, where)


def quantize(tensor: Tensor, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    """Return a tensor as its quantizer has it; itself for none."""
    refuse_quantized("quantize", tensor)
    if quantizer is None:
        return tensor
    if type(quantizer).__name__ != _CURRENT:
        target = Target("quantize", tensor.shape, tensor, tensor.dtype, quantizer, output)
        operands = (tensor, *target.read, *target.written)
        launch(
            "quantize", lambda x, *rest: target.store(x.float(), *rest), operands, target.written
        )
        return target.value
    value = empty(quantizer, tensor.shape, tensor.dtype, tensor) if output is None else output
    amax, scale = (tensor.new_empty(1, dtype=torch.float32) for _ in range(2))
    compute_amax(tensor, amax)
    if quantizer.with_amax_reduction:
        group = quantizer.amax_reduction_group
        torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX, group)
    most = _largest(quantizer.dtype)

    def scale_of(amax: Tensor, scale: Tensor) -> None:
        largest = amax.clamp(min=quantizer.amax_epsilon)
        factor = torch.where(largest.isfinite() & (largest > 0), most / largest, 1.0)
        if quantizer.force_pow_2_scales:
            factor = torch.exp2(torch.floor(torch.log2(factor)))
        scale.copy_(factor.clamp(max=torch.finfo(torch.float32).max))

    launch("compute_scale_from_amax", scale_of, (amax, scale), (scale,))

    def cast(x: Tensor, scale: Tensor, *written: Tensor) -> None:
        *to, scale_inv = written
        _cast(x.float(), scale, to, scale_inv, value, quantizer)

    written = (*_parts(value), value._scale_inv)
    launch("quantize", cast, (tensor, scale, *written), written)
    return value


def compute_amax(input: Tensor, amax: Tensor) -> None:
    """Write the largest absolute number."""

    def compute(x: Tensor, amax: Tensor) -> None:
        amax.copy_(x.abs().max().reshape(amax.shape))

    launch("compute_amax", compute, (input, amax), (amax,))


def dequantize(input: Any, otype: Any) -> Tensor:
    """Return numbers in a dtype of 16 or 32 bits."""
    x = operand("dequantize", input, False, by_rows=True)
    out = x.data.new_empty(x.shape, dtype=torch_dtype(otype, torch.float32))

    def compute(data: Tensor, scale: Tensor | None, out: Tensor) -> None:
        out.copy_(
            (widened(data, scale).t() if x.is_turned else widened(data, scale)).reshape(out.shape)
        )

    launch("dequantize", compute, (x.data, x.scale, out), (out,))
    return out


def fp8_transpose(input: Tensor, dtype: Any, *, out: Tensor | None = None) -> Tensor:
    """Return a matrix of bytes, turned; all but the last dim are its rows."""
    columns = input.shape[-1]
    into = input.new_empty((columns, *input.shape[:-1])) if out is None else out

    def compute(x: Tensor, into: Tensor) -> None:
        into.copy_(x.reshape(-1, columns).t().reshape(into.shape))

    launch("fp8_transpose", compute, (input, into), (into,))
    return into


def split_quantize(
    tensor: Tensor, split_sections: Sequence[int], quantizer_list: Sequence[Any],
    disable_bulk_allocation: bool = False,
) -> list[Any]:  # fmt: skip
    """Return rows of a tensor as their quantizers have them."""
    return multi_tensor_quantize(torch.split(tensor, list(split_sections)), quantizer_list)


def multi_tensor_quantize(
    tensor_list: Sequence[Tensor], quantizer_list: Sequence[Any]
) -> list[Any]:
    """Return tensors as their quantizers have them."""
    return [quantize(x, how) for x, how in zip(tensor_list, quantizer_list, strict=True)]


def bgrad_quantize(input: Tensor, quantizer: Any) -> list[Any]:
    """Return the gradient of a bias, and what it is a sum of as its quantizer has it."""
    of_bias = input.new_empty(input.shape[-1])

    def compute(x: Tensor, of_bias: Tensor) -> None:
        of_bias.copy_(x.float().reshape(-1, x.shape[-1]).sum(0))

    launch("bgrad", compute, (input, of_bias), (of_bias,))
    return [of_bias, quantize(input, quantizer)]


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: Tensor, amax_histories: Sequence[Tensor], scales: Sequence[Tensor],
    amax_compute_algo: str, fp8_dtype: Any, margin: float,
) -> None:  # fmt: skip
    """Move histories on by the largest numbers of all ranks, and write the scales that follow.

    Histories are ``(steps, tensors)``, the latest first.
    """
    most = _largest(fp8_dtype)
    ends = list(accumulate((scale.numel() for scale in scales), initial=0))

    def compute(buffer: Tensor, *tensors: Tensor) -> None:
        count = len(scales)
        for number, (first, last) in enumerate(pairwise(ends)):
            history, scale = tensors[number], tensors[count + number]
            history[0].copy_(buffer[first:last])
            largest = history[0] if amax_compute_algo == "most_recent" else history.amax(0)
            factor = most / largest / 2**margin
            factor = torch.where(largest > 0, factor, scale)
            factor = torch.where(largest.isfinite(), factor, scale)
            scale.copy_(factor.clamp(max=torch.finfo(torch.float32).max))
            history.copy_(history.roll(-1, 0))
            history[0].zero_()

    written = (*amax_histories, *scales)
    name = "amax_and_scale_update"
    launch(name, compute, (amax_reduction_buffer, *written), written, over=written)
