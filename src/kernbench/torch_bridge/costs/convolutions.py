"""Convolutions of PyTorch as the vendor library's problems, and their time."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from torch import Tensor, channels_last, channels_last_3d
from torch._prims_common import suggest_memory_format

from kernbench.hardware import load_library
from kernbench.library_kernels import (
    Convolution,
    ConvolutionPass,
    by_channel,
    convolution_kernels,
    family_of,
    streamed,
)
from kernbench.torch_bridge.base.versions import release_of_kernels
from kernbench.torch_bridge.costs.library import timing_of_library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernbench.dtypes import DType
    from kernbench.hardware import Machine
    from kernbench.library_kernels import LibraryKernel
    from kernbench.torch_bridge.base.operation_timing import OperationTiming

_FAST_DEPTHWISE = (1, 12)
"""The first release that is measured to have fast gradients of depthwise weights channels-last."""
_BY_GRAPH = (2, 0)
"""The first release that asks cuDNN's version 8 for its convolutions (PyTorch, pull request
91117)."""


class ConvolutionCosts:
    """Schedules of convolutions on one machine; each is computed once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[Any, OperationTiming] = {}

    def timing(
        self,
        name: str,
        args: Any,
        result: Any,
        dtype: DType,
        sip_id: int,
        precision: str,
        flops: int,
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
        is_forward = not isinstance(result, (list, tuple))
        is_depthwise = bool(passes) and passes[0].is_depthwise
        if not is_forward and is_depthwise and release_of_kernels() < _FAST_DEPTHWISE:
            passes = tuple(replace(each, is_early=True) for each in passes)
        has_bias = is_forward and args[2] is not None
        copied = tuple(each.nbytes for each in _copied(args, is_forward))
        summed = 0 if is_forward or not args[-1][2] else args[0].nbytes
        key = (name, passes, has_bias, copied, summed, id(sip))
        found = self._known.get(key)
        if found is None:
            kernels: list[LibraryKernel] = [streamed("conv_copy", each, each) for each in copied]
            for each in passes:
                kernels += convolution_kernels(each, sip, library).kernels
            if has_bias and not passes[0].is_depthwise:
                # PyTorch adds it by a kernel of its own.
                kernels.append(streamed("conv_bias", result.nbytes, result.nbytes))
            if summed:
                # The gradient of a bias is a sum over the batch and all positions.
                kernels.append(streamed("conv_bias", summed, 0))
            found = self._known[key] = timing_of_library(name, kernels, sip, library, flops)
        return found

    def norm(
        self,
        name: str,
        image: Tensor,
        moved: tuple[int, int],
        trains: bool,
        sip_id: int,
    ) -> OperationTiming | None:
        """Return the schedules of a norm over the batch; None if the vendor has no such kernel.

        ``moved`` are bytes read and written. Kernels that take a plane at a time, and those that
        sum up first, reach less of HBM's bandwidth than a stream; those that do both have a block
        of threads for each channel.
        """
        architecture = self._machine.spec.kernel_library
        if architecture is None:
            return None
        library = load_library(architecture)
        kernel = f"batch_norm{'_train' * trains}{'_planar' * is_planar(image)}"
        if kernel not in library.names():
            return None
        channels = image.shape[1] if image.dim() > 1 else 1
        key = (name, kernel, moved, channels, sip_id)
        found = self._known.get(key)
        if found is None:
            sip = self._machine.sip_at(sip_id)
            if trains and is_planar(image):
                launch = by_channel(kernel, channels, *moved)
            else:
                launch = streamed(kernel, *moved)
            found = self._known[key] = timing_of_library(name, [launch], sip, library)
        return found


def _passes(args: Any, result: Any, dtype: str, itemsize: int) -> Iterator[Convolution]:
    """Yield what a call computes; a transposed convolution is the gradient of an input."""
    if not isinstance(result, (list, tuple)):
        x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
        which = ConvolutionPass.TO_INPUT if transposed else ConvolutionPass.FORWARD
        given, made = (result, x) if transposed else (x, result)
        planar = not _is_last(x, weight)
        yield _convolution(
            given, made, weight, stride, dilation, groups, which, dtype, itemsize, planar
        )
        return
    grad, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args[:11]
    given, made = (grad, x) if transposed else (x, grad)
    planar = not _is_last(x, weight)
    to_x = ConvolutionPass.FORWARD if transposed else ConvolutionPass.TO_INPUT
    for is_wanted, which in zip(wanted, (to_x, ConvolutionPass.TO_WEIGHT), strict=False):
        if is_wanted:
            yield _convolution(
                given, made, weight, stride, dilation, groups, which, dtype, itemsize, planar
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
    planar: bool,
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
        planar=planar,
        dilated=any(each > 1 for each in dilation),
        by_graph=release_of_kernels() >= _BY_GRAPH,
        which=which,
    )


def _is_last(image: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution runs channels-last: if its input or its weight is."""
    last = (channels_last, channels_last_3d)
    return suggest_memory_format(image) in last or suggest_memory_format(weight) in last


def _copied(args: Any, is_forward: bool) -> Iterator[Tensor]:
    """Yield the images that PyTorch copies to the memory format in which a convolution runs."""
    images = args[:1] if is_forward else args[:2]
    weight = args[1] if is_forward else args[2]
    is_last = _is_last(images[-1], weight)
    for each in images:
        if is_planar(each) if is_last else not each.is_contiguous():
            yield each


def is_planar(image: Tensor) -> bool:
    """Return whether the channels of an element are not contiguous."""
    formats = {4: channels_last, 5: channels_last_3d}
    return image.dim() not in formats or not image.is_contiguous(memory_format=formats[image.dim()])
