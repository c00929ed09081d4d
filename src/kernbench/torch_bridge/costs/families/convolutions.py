"""Convolutions of PyTorch as the vendor library's problems, and their time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from torch import Tensor, channels_last, channels_last_3d
from torch._prims_common import suggest_memory_format

from kernbench.dtypes import DType, float32
from kernbench.library_kernels import (
    BlockLaunch,
    Convolution,
    ConvolutionPass,
    LibraryKernel,
    Windows,
    convolution_kernels,
    direct_launch,
    family_of,
    stream,
    window_launch,
)
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.versions import release_of_kernels
from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes
from kernbench.torch_bridge.costs.families import gemm
from kernbench.torch_bridge.costs.families.gemm import Multiplication, multiplication
from kernbench.torch_bridge.costs.library import timing_of_blocks, timing_of_library
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.products import CONVOLUTIONS, flops_of
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.scattered import is_planar
from kernbench.torch_bridge.costs.sequences import in_turn

_FAST_DEPTHWISE = (1, 12)
"""The first release that is measured to have fast gradients of depthwise weights channels-last."""
_BY_GRAPH = (2, 0)
"""The first release that asks cuDNN's version 8 for its convolutions (PyTorch, pull request
91117)."""

_VOLUME = 3
"""Dims of a volume."""
_WIDE_TILES = 64
"""Rows of the matrix instruction whose kernels make gradients of few channels: Hopper's."""
_FEW_CHANNELS = "conv_tf32_few"
"""The name of constants of an architecture that multiplies volumes of few channels on tensor cores.
"""
_THREADS = 1024
"""Threads of a block of ATen's depthwise kernel."""
_BUILT_FOR = ((1, 1), (3, 3), (5, 5))
"""Windows of which it has an instance each."""


class _Passes(NamedTuple):
    """What the vendor's library computes for a call."""

    passes: tuple[Convolution, ...]
    biased: int
    """Bytes of a result to which a bias is added; 0 without one."""
    copied: tuple[int, ...]
    """Bytes of images that are copied to another memory format."""
    summed: int
    """Bytes of a gradient that is summed to that of a bias."""
    flops: int


class _Direct(NamedTuple):
    """A kernel without a product, and the bytes to which a bias is added."""

    launch: BlockLaunch
    moved: int
    flops: int


class _Product(NamedTuple):
    """A product of patches and weights, and the bytes that are made channels-last for it."""

    product: Multiplication
    moved: int


def _key(costs: OperationCosts, call: OperationCall) -> _Passes | _Direct | _Product | None:
    product = multiplication(costs, call, "convolution")
    if product is None or product.dtype is None:
        return None
    by_library = _of_library(costs, call, product, product.dtype)
    if by_library is not None:
        return by_library
    is_exact = product.dtype == float32 and product.precision == "ieee"
    return _Product(product, 0 if is_exact else _rearranged(call.args, call.result))


def _of_library(
    costs: OperationCosts, call: OperationCall, product: Multiplication, dtype: DType
) -> _Passes | _Direct | None:
    """Return what a library does for a convolution or its gradients; None without one for it."""
    args, result = call.args, call.result
    rates = costs.machine.sip_at(call.sip_id).pe.gemm.flops_per_clock
    multiplied = product.precision if product.precision in rates else dtype.name
    if multiplied not in rates or not costs.has_kernel(f"conv_{family_of(multiplied)}"):
        return None
    assert costs.library is not None
    passes = tuple(_passes(args, result, multiplied, dtype.itemsize))
    is_forward = not isinstance(result, (list, tuple))
    is_depthwise = bool(passes) and passes[0].is_depthwise
    flops = flops_of(product.products)
    is_planar_depthwise = is_depthwise and passes[0].planar and passes[0].dims < _VOLUME
    is_plain = is_forward and dtype == float32 and passes[0].which is ConvolutionPass.FORWARD
    if is_planar_depthwise and is_plain:
        # ATen has a kernel, which PyTorch takes (``use_cudnn_depthwise``).
        sustained = costs.machine.sip_at(call.sip_id).sustained
        is_limited = sustained is not None and sustained.float32_clock_loss is not None
        windows = Windows(
            results=result.numel(),
            window=tuple(args[1].shape[2:]),
            strides=tuple(args[3]),
            itemsize=result.element_size(),
            read_bytes=args[0].nbytes,
            written_bytes=result.nbytes,
            threads=_THREADS,
            multiplies="float32" if is_limited else "",
            unrolled=tuple(args[1].shape[2:]) in _BUILT_FOR,
        )
        return _Direct(window_launch(call.name, windows), 0, flops)
    if not is_forward and is_depthwise and release_of_kernels() < _FAST_DEPTHWISE:
        passes = tuple(replace(convolution, is_early=True) for convolution in passes)
    biased = result.nbytes if is_forward and args[2] is not None and not is_depthwise else 0
    if is_forward:
        has_narrow = costs.machine.sip_at(call.sip_id).pe.gemm.native_m >= _WIDE_TILES
        has_few = costs.has_kernel(_FEW_CHANNELS)
        gathered = float(costs.library.constants(_FEW_CHANNELS).vector_share) if has_few else 0.0
        launch = direct_launch(call.name, passes[0], has_narrow, gathered)
        if launch is not None:
            return _Direct(launch, biased, flops)
    return _Passes(
        passes,
        biased=biased,
        copied=tuple(item.nbytes for item in _copied(args, is_forward)),
        summed=0 if is_forward or not args[-1][2] else args[0].nbytes,
        flops=flops,
    )


def _rearranged(args: Any, result: Any) -> int:
    """Return the bytes of operands that are made channels-last, which matrix engines need.

    Those of ``torch.channels_last`` are already.
    """
    is_backward = isinstance(result, (list, tuple))
    x = args[1] if is_backward else args[0]
    if not is_planar(x):
        return 0
    # Weights are small compared with inputs; results have the layout of the input.
    other = args[0] if is_backward else result
    return int(other.nbytes + (2 if is_backward and args[-1][0] else 1) * x.nbytes)


def _kernels(
    costs: OperationCosts, name: str, problem: _Passes | _Direct | _Product, sip_id: int
) -> OperationTiming:
    sip = costs.machine.sip_at(sip_id)
    if not isinstance(problem, _Passes):
        if isinstance(problem, _Product):
            timing = costs.once(gemm.kernels, name, problem.product, sip_id)
        else:
            timing = timing_of_blocks(name, [problem.launch], sip, problem.flops)
        assert timing is not None
        moved = problem.moved
        return in_turn(timing, timing_by_bytes("", sip, moved, moved)) if moved else timing
    passes, biased, copied, summed, flops = problem
    library = costs.library
    assert library is not None
    kernels: list[LibraryKernel] = [
        stream("conv_copy", number, number, warm=False) for number in copied
    ]
    for convolution in passes:
        kernels += convolution_kernels(convolution, sip, library).kernels
    if biased:
        # PyTorch adds it by a kernel of its own.
        kernels.append(stream("conv_bias", biased, biased, warm=False))
    if summed:
        # The gradient of a bias is a sum over the batch and all positions.
        kernels.append(stream("conv_bias", summed, 0, warm=False))
    return timing_of_library(name, kernels, sip, library, flops)


def _passes(args: Any, result: Any, dtype: str, itemsize: int) -> Iterator[Convolution]:
    """Yield what a call computes; a transposed convolution is the gradient of an input."""
    to_x, to_other = ConvolutionPass.FORWARD, ConvolutionPass.TO_INPUT
    if not isinstance(result, (list, tuple)):
        x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
        other, wanted = result, (True,)
        both = [to_other if transposed else to_x]
    else:
        other, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args[:11]
        both = [to_x if transposed else to_other, ConvolutionPass.TO_WEIGHT]
    value, built = (other, x) if transposed else (x, other)
    window = tuple(weight.shape[2:])
    convolution = Convolution(
        in_channels=value.shape[1],
        out_channels=built.shape[1],
        in_positions=int(value.shape[0] * prod(value.shape[2:])),
        out_positions=int(built.shape[0] * prod(built.shape[2:])),
        taps=prod(window),
        groups=groups,
        unit_stride=all(item == 1 for item in (*stride, *dilation)) and window == (3, 3),
        dtype=dtype,
        itemsize=itemsize,
        planar=not _is_last(x, weight),
        dilated=any(item > 1 for item in dilation),
        strided=any(item > 1 for item in stride),
        reached=_reached(window, stride, dilation),
        dims=len(window),
        by_graph=release_of_kernels() >= _BY_GRAPH,
    )
    for which, is_wanted in zip(both, wanted, strict=False):
        if is_wanted:
            yield replace(convolution, which=which)


def _reached(window: Any, stride: Any, dilation: Any) -> float:
    """Return the share of positions that windows take which begin at any multiple of a stride."""
    phases = (
        len({tap * apart % step for tap in range(taps)}) / step
        for taps, step, apart in zip(window, stride, dilation, strict=False)
    )
    return prod(phases)


def _is_last(image: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution runs channels-last: if its input or its weight is."""
    last = (channels_last, channels_last_3d)
    return suggest_memory_format(image) in last or suggest_memory_format(weight) in last


def _copied(args: Any, is_forward: bool) -> Iterator[Tensor]:
    """Yield the images that PyTorch copies to the memory format in which a convolution runs."""
    images = args[:1] if is_forward else args[:2]
    weight = args[1] if is_forward else args[2]
    is_last = _is_last(images[-1], weight)
    for image in images:
        if is_planar(image) if is_last else not image.is_contiguous():
            yield image


FAMILY: Family[_Passes | _Direct | _Product] = Family(
    matches=CONVOLUTIONS.__contains__,
    key=_key,
    kernels=_kernels,
    cold=lambda call: (call.args[2 if isinstance(call.result, (list, tuple)) else 1],),
)
