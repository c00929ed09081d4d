"""Convolutions of PyTorch as the vendor library's problems, and their time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from torch import Tensor, channels_last, channels_last_3d

from kernbench.hardware import load_library
from kernbench.library_kernels import (
    Convolution,
    ConvolutionPass,
    convolution_kernels,
    family_of,
    streamed,
)
from kernbench.torch_bridge.costs.library import timing_of_library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernbench.dtypes import DType
    from kernbench.hardware import Machine
    from kernbench.library_kernels import LibraryKernel
    from kernbench.torch_bridge.base.operation_timing import OperationTiming


class ConvolutionCosts:
    """Schedules of convolutions on one machine; each is computed once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[Any, OperationTiming] = {}

    def timing(
        self, name: str, args: Any, result: Any, dtype: DType, sip_id: int, precision: str
    ) -> OperationTiming | None:
        """Return the schedules of a convolution or its gradients; None without a library."""
        architecture = self._machine.spec.kernel_library
        if architecture is None:
            return None
        sip, library = self._machine.sip_at(sip_id), load_library(architecture)
        rates = sip.pe.gemm.flops_per_clock
        multiplied = precision if precision in rates else dtype.name
        if multiplied not in rates or f"conv_{family_of(multiplied)}" not in library.names():
            return None
        passes = tuple(_passes(args, result, multiplied, dtype.itemsize))
        has_bias = not isinstance(result, (list, tuple)) and args[2] is not None
        key = (name, passes, has_bias, id(sip))
        found = self._known.get(key)
        if found is None:
            kernels: list[LibraryKernel] = []
            for each in passes:
                kernels += convolution_kernels(each, sip, library).kernels
            if has_bias and not passes[0].is_depthwise:
                # PyTorch adds it by a kernel of its own.
                kernels.append(streamed("conv_bias", result.nbytes, result.nbytes))
            found = self._known[key] = timing_of_library(name, kernels, sip, library)
        return found


def _passes(args: Any, result: Any, dtype: str, itemsize: int) -> Iterator[Convolution]:
    """Yield what a call computes; a transposed convolution is the gradient of an input."""
    if not isinstance(result, (list, tuple)):
        x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
        which = ConvolutionPass.TO_INPUT if transposed else ConvolutionPass.FORWARD
        given, made = (result, x) if transposed else (x, result)
        yield _convolution(given, made, weight, stride, dilation, groups, which, dtype, itemsize, x)
        return
    grad, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args[:11]
    given, made = (grad, x) if transposed else (x, grad)
    to_x = ConvolutionPass.FORWARD if transposed else ConvolutionPass.TO_INPUT
    for is_wanted, which in zip(wanted, (to_x, ConvolutionPass.TO_WEIGHT), strict=False):
        if is_wanted:
            yield _convolution(
                given, made, weight, stride, dilation, groups, which, dtype, itemsize, x
            )


def _convolution(
    given: Tensor,
    made: Tensor,
    weight: Tensor,
    stride: Any,
    dilation: Any,
    groups: int,
    which: ConvolutionPass,
    dtype: str,
    itemsize: int,
    image: Tensor,
) -> Convolution:
    plain = all(each == 1 for each in (*stride, *dilation))
    return Convolution(
        given=given.shape[1],
        made=made.shape[1],
        given_positions=int(given.shape[0] * prod(given.shape[2:])),
        made_positions=int(made.shape[0] * prod(made.shape[2:])),
        taps=prod(weight.shape[2:]),
        groups=groups,
        unit_stride=plain and tuple(weight.shape[2:]) == (3, 3),
        dtype=dtype,
        itemsize=itemsize,
        planar=is_planar(image),
        which=which,
    )


def is_planar(image: Tensor) -> bool:
    """Return whether the channels of an element are not contiguous."""
    formats = {4: channels_last, 5: channels_last_3d}
    return image.dim() not in formats or not image.is_contiguous(memory_format=formats[image.dim()])
