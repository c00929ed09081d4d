"""Convolutions as cuDNN does them: implicit products, Winograd, and direct kernels.

An implicit product has a row per position of the result, whose patch it gathers as it goes: no
patch is ever written. Matrix engines want the channels of an element side by side, in groups of 8:
an image that has them apart is rearranged before, and the result after, or taken by a kernel that
reads it as it is and is slower. Of float32 it is the other way round. Winograd's transforms need
fewer multiplications for 3 x 3 with stride 1. Where each channel is a group of its own there is no
product at all, and the vector engine works directly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from kernbench.hardware import KernelLibrary, SipSpec
from kernbench.library_kernels.choice import KernelChoice, fastest
from kernbench.library_kernels.products import Product, family_of, product_kernels
from kernbench.library_kernels.streams import stream
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

_ALIGNED = 8
"""Channels that a matrix engine's kernel loads at a time; fewer are padded."""
_WINOGRAD = 2.25
"""Multiplications that transforms of 4 x 4 save: 2 x 2 results by 16 in place of 36."""
_WINOGRAD_CHANNELS = 16
"""With fewer the transforms cost more than they save."""
_TILE_ELEMENTS = 1024
_UNDER_WAY = 512 * 8
"""Bytes that a block of 512 threads asks for at a time."""
_GROUP_WIDTHS = (4, 8, 16, 32)
"""Channels of a group for which there are kernels that take images channels-last."""
_OF_MANY_GROUPS = (16, 64)
"""Widths whose kernels version 7's calls take for many groups alone: with PyTorch 1.13,
RegNetX-800MF, EfficientNet-B0-g16 and RegNetZ-4GF take 1.2 to 1.4 times as long channels-last as
with 2.4, and ResNeXTs of 32 groups do not."""
_NEVER_PLANAR = 8
"""Width of groups for which no kernel takes planes as they are: with one, NF-RegNets and RegNets of
8 would take 7 to 16 % less with planes than they do, on four devices."""
_WHOLE_TILE = 64
"""Groups of so many channels, and multiples, fill tiles: NFNets' of 128 take no longer in inference
channels-last than with planes."""
_GRADIENT_WIDTHS = (48,)
"""For which there are kernels of gradients, of any number of groups: Visformer's 8 and ResNeSt's 4
take no longer channels-last."""
_AT_A_TIME = 32
"""Kernels of gradients take so many groups and more, or with up to 8 channels so many channels of
several, and multiples: in training, networks with others take up to twice as long channels-last,
and DPN's with 40 and 50 groups do not."""
_NARROW = 8
_WIDE_TILE = 128
"""Others take groups of more than 32 channels by tiles of so many: 56, 72 and 128 take as long."""
_LOADED_WIDTH = 18
"""Channels that multiply while one is loaded: groups of 8 take half as long as those of 24. Fitted,
with the share of the vector engine, to six networks of timm-bench (RTX 3090) that fits see."""
_WIDE = 4
"""Bytes of a float32: channels-last, cuDNN has no direct kernel for it. It takes each channel as a
product of a group, whose tile has one column that is needed."""


_WHOLE_TILE_ROWS = 128
_AT_ONCE = 4
"""Channels of float32 that a tensor-core kernel loads at a time (``alignc4`` in cuDNN's names)."""
_THIN = 8
"""Planes of up to so many channels are multiplied in float32: level2/65, 67, 69, 73 and 82 of
KernelBench on H100, H100 PCIe, L40S and L4 (later sizes, 8 channels; level1/63 has 16)."""
_FEW_PLANES = 32
"""Channels up to which planes go to the kernel that takes them where there is one: 16 and 32
(KernelBench level1/62 and 63, and gradients of 71 and 78, at 4082b873 and 15c880c7) run at its rate
on L40S and L4, 64 (65, 67) do not."""
_OVERLAP, _OVERLAP_UNSTAGED = 3.0, 2.0
"""How well tiles, the cache and HBM work beside each other in kernels that store planes: a tile
stores after its loop. The power is that of blocks (``blocks.py``), and less where loads are not
staged ahead in shared memory: KernelBench level1/62 and 63, original sizes, on five boards."""
_VOLUME = 3
_TRIP = 32
"""Channels of float32 in a trip along K: 128 bytes."""


class ConvolutionPass(Enum):
    """Which of a convolution's three products."""

    FORWARD = "forward"
    TO_INPUT = "data gradient"
    TO_WEIGHT = "weight gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution of images of one batch; ``given`` is its input, ``made`` its output."""

    in_channels: int
    """Channels of the input."""
    out_channels: int
    """Channels of the output."""
    in_positions: int
    """Positions of the input: batch times height times width."""
    out_positions: int
    """Positions of the output."""
    taps: int
    """Elements of a window."""
    groups: int = 1
    unit_stride: bool = True
    """Whether windows are 3 x 3 and neither strided nor dilated, as Winograd's transforms want."""
    dtype: str = "bfloat16"
    """The dtype of the multiplication."""
    itemsize: int = 2
    planar: bool = False
    """Whether the channels of an element are apart in memory."""
    is_early: bool = False
    """Whether it is one of the releases of PyTorch before 1.12, and of the cuDNN beside them."""
    dilated: bool = False
    """Whether the elements of a window are apart."""
    strided: bool = False
    """Whether windows begin further than an element from each other."""
    reached: float = 1.0
    """The share of the input's positions that any window takes: strides that have a divisor in
    common with dilations leave some out."""
    dims: int = 2
    """The dimensions of an image; a volume has 3."""
    by_graph: bool = True
    """Whether the framework asks cuDNN 8 for a graph of operations, and gets what its engines take
    as it is; else by the calls of version 7, which pad channels to groups of 8."""
    which: ConvolutionPass = ConvolutionPass.FORWARD

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.in_channels and self.groups > 1

    @property
    def widths(self) -> tuple[int, int]:
        """How many channels a group takes and makes."""
        return self.in_channels // self.groups, self.out_channels // self.groups

    @property
    def in_bytes(self) -> int:
        return self.in_channels * self.in_positions * self.itemsize

    @property
    def out_bytes(self) -> int:
        return self.out_channels * self.out_positions * self.itemsize

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes of the images that a pass reads, and of those that it writes."""
        if self.which is ConvolutionPass.TO_WEIGHT:
            return self.in_bytes + self.out_bytes, 0
        if self.which is ConvolutionPass.TO_INPUT:
            return self.out_bytes, self.in_bytes
        return self.in_bytes, self.out_bytes


def convolution_kernels(
    convolution: Convolution, sip: SipSpec, library: KernelLibrary
) -> KernelChoice:
    """Return the launches of one pass of a convolution and their time.

    Raises:
        UnknownNameError: The architecture has no such kernels.
        MachineError: The machine has no rate for the dtype.
    """
    return fastest(_candidates(convolution, sip, library), sip, library)


def _candidates(
    conv: Convolution, sip: SipSpec, library: KernelLibrary
) -> Iterator[tuple[LibraryKernel, ...]]:
    by_matrix = conv.dtype not in ("float32", "float64")
    if conv.is_depthwise:
        yield (_direct(conv, library),)
        return
    in_float32 = _in_float32(conv, sip, library)
    if in_float32 and (conv.in_channels % _AT_ONCE or conv.in_channels <= _THIN):
        yield from in_float32
        return
    if by_matrix and conv.groups > 1 and not conv.planar and not _has_grouped_kernel(conv):
        yield from _of_other_groups(conv, sip, library)
        return
    moves = _moves(conv, sip, library) if conv.planar == by_matrix else ()
    product, launches = _product(conv, by_matrix), _launches(conv)
    kernels = product_kernels(product, sip, library).kernels
    if by_matrix and conv.groups > 1 and not _has_grouped_kernel(conv):
        slower = f"{kernels[0].name}_grouped_gradient"
        if conv.which is not ConvolutionPass.FORWARD and slower in library.names():
            slow = tuple(_renamed(kernel, "_grouped_gradient", library) for kernel in kernels)
            yield slow * launches
            return
    if by_matrix and not conv.planar and not conv.by_graph:
        moves = _pads(conv)
    elif by_matrix and _has_odd_rows(conv):
        kernels = tuple(_renamed(kernel, "_odd", library) for kernel in kernels)
    has_planar = f"{kernels[0].name}_planar" in library.names() and not _is_moved(conv)
    if _stores_planes(conv, sip):
        kernels = tuple(replace(kernel, overlap=_OVERLAP) for kernel in kernels)
    if not (has_planar and _is_thin(conv)):
        yield (*moves, *kernels * launches)
        yield from in_float32 * conv.by_graph
    if conv.planar and moves and has_planar:
        product = _product(conv, padded=False)
        kernels = product_kernels(product, sip, library).kernels
        yield tuple(_renamed(kernel, "_planar", library) for kernel in kernels) * launches
    if (
        conv.unit_stride
        and conv.taps == 9
        and conv.groups == 1
        and family_of(conv.dtype) == "float32"
        and min(conv.in_channels, conv.out_channels) >= _WINOGRAD_CHANNELS
        and conv.which is not ConvolutionPass.TO_WEIGHT
    ):
        fewer = replace(product, k=math.ceil(product.k / _WINOGRAD))
        kernels = product_kernels(fewer, sip, library).kernels
        names = {"conv_float32": "conv_winograd"}
        yield (*moves, *(replace(one, name=names.get(one.name, one.name)) for one in kernels))


def _in_float32(
    conv: Convolution, sip: SipSpec, library: KernelLibrary
) -> tuple[tuple[LibraryKernel, ...], ...]:
    """Return the launches of ``implicit_convolve_sgemm``, if it may take planes of TF32."""
    is_image = conv.planar and conv.dims < _VOLUME and conv.groups == 1
    if conv.dtype != "tf32" or not is_image or conv.which is not ConvolutionPass.FORWARD:
        return ()
    product = _product(replace(conv, dtype="float32"), padded=False)
    kernels = product_kernels(product, sip, library).kernels
    return (tuple(replace(kernel, overlap=_OVERLAP_UNSTAGED) for kernel in kernels),)


def _of_other_groups(
    conv: Convolution, sip: SipSpec, library: KernelLibrary
) -> Iterator[tuple[LibraryKernel, ...]]:
    """Yield what is done for groups, channels-last, of widths that have no kernel of their own."""
    kernel = _grouped(conv)
    if not conv.by_graph and f"{kernel.name}_before" in library.names():
        kernel = replace(kernel, name=f"{kernel.name}_before")
    yield (kernel,)
    is_wide = conv.by_graph and min(conv.widths) > _WHOLE_TILE
    if is_wide and conv.which is ConvolutionPass.FORWARD:
        product = _product(conv, True, _WHOLE_TILE)
        yield product_kernels(product, sip, library).kernels * _launches(conv)


def _has_grouped_kernel(conv: Convolution) -> bool:
    number, result = conv.widths
    if number != result:
        return False
    if conv.which is ConvolutionPass.FORWARD:
        if not conv.by_graph and number in _OF_MANY_GROUPS and conv.groups < _AT_A_TIME:
            return False
        return number in _GROUP_WIDTHS or not number % _WHOLE_TILE
    if conv.dilated and not conv.planar:
        # SKNet's train as slowly as groups without a kernel do, and only channels-last.
        return False
    if number not in _GROUP_WIDTHS:
        return number in _GRADIENT_WIDTHS
    return not conv.in_channels % _AT_A_TIME if number <= _NARROW else conv.groups >= _AT_A_TIME


def _is_moved(conv: Convolution) -> bool:
    """Return whether planes are rearranged in any case.

    Of TF32, what is known of kernels that take them is of forward passes, and of few channels.
    """
    if conv.dtype == "tf32" and conv.which is not ConvolutionPass.FORWARD:
        return conv.strided or conv.which is ConvolutionPass.TO_WEIGHT or not _is_thin(conv)
    return conv.groups > 1 and min(conv.widths) == _NEVER_PLANAR


def _is_thin(conv: Convolution) -> bool:
    """Return whether planes of TF32 have so few channels that no other kernel takes them."""
    is_few = conv.dims < _VOLUME and conv.in_channels <= _FEW_PLANES
    return conv.dtype == "tf32" and conv.planar and is_few


def _has_odd_rows(conv: Convolution) -> bool:
    """Return whether a plain product makes rows of odd lengths of even ones.

    So it is with one tap alone: FocalNet's of 256 to 2048 channels that make 517 to 4101 take six
    times as long, and so do those of ECA-ResNet-101-D, pruned to odd numbers. Odd rows that are
    loaded are padded: RegNetY-2560's of 4103 channels that make as many are as fast as others.
    """
    taken, number = conv.in_channels, conv.out_channels
    if conv.which is not ConvolutionPass.FORWARD:
        taken, number = number, taken
    is_plain = not conv.planar and conv.groups == conv.taps == 1
    return is_plain and taken % 2 == 0 and number % 2 == 1 < number


def _renamed(kernel: LibraryKernel, ending: str, library: KernelLibrary) -> LibraryKernel:
    """Return a product as another kernel if there is one: not for what adds up its parts."""
    name = f"{kernel.name}{ending}"
    return replace(kernel, name=name) if name in library.names() else kernel


def _product(conv: Convolution, padded: bool, multiple: int = _ALIGNED) -> Product:
    number, result = conv.widths
    if padded:
        number, result = (math.ceil(item / multiple) * multiple for item in (number, result))
        if conv.dims == _VOLUME and conv.itemsize == _WIDE:
            # Their kernels go along K tap by tap, in whole trips of the channels that are summed.
            if conv.which is ConvolutionPass.FORWARD:
                number = math.ceil(number / _TRIP) * _TRIP
            elif conv.which is ConvolutionPass.TO_INPUT:
                result = math.ceil(result / _TRIP) * _TRIP
    if conv.which is ConvolutionPass.FORWARD:
        m, n, k, of_a = conv.out_positions, result, number * conv.taps, conv.in_bytes
    elif conv.which is ConvolutionPass.TO_INPUT:
        # Of a strided convolution's windows, each element of the input is in a few only.
        rows = max(math.ceil(conv.in_positions * conv.reached), 1)
        # What cuDNN's graphs take for float32 multiplies by zeros, too (KernelBench level1/81 and
        # level2/16 on T4) unless windows lie side by side (level3/45). Version 7's go by phases.
        is_apart = conv.taps * conv.out_positions <= conv.in_positions and not conv.dilated
        is_image = conv.dtype == "float32" and conv.planar and conv.dims < _VOLUME and conv.by_graph
        met = 1.0 if is_image and not is_apart else min(conv.out_positions / rows, 1.0)
        k = max(math.ceil(result * conv.taps * met), 1)
        m, n, of_a = rows, number, conv.out_bytes
    else:
        m, n, k, of_a = number * conv.taps, result, conv.out_positions, conv.in_bytes
    launches = _launches(conv)
    return Product(
        m=m,
        n=n,
        k=k,
        batch=conv.groups // launches,
        dtype=conv.dtype,
        itemsize=conv.itemsize,
        out_bytes=conv.itemsize,
        a_bytes=of_a / launches,
        library="conv",
    )


def _launches(conv: Convolution) -> int:
    """Return how many launches a product is: one for each group that takes and makes unlike many.

    Kernels for all groups at once are for as many channels made as taken. CondConv's groups, one
    for each picture, take as long on an RTX 3090 as on a 5090: the time of so many launches.
    """
    return conv.groups if conv.in_channels != conv.out_channels else 1


def _moves(conv: Convolution, sip: SipSpec, library: KernelLibrary) -> tuple[LibraryKernel, ...]:
    """Return the launches that rearrange images: two operands, or one and the result, if it is.

    Of a strided gradient of float32 each phase that windows reach makes an image: a pass puts them
    together, with zeros elsewhere.
    """
    name = "conv_rearrange"
    if conv.itemsize < _WIDE and f"{name}_half" in library.names():
        name = f"{name}_half"
    sizes = [conv.in_bytes, *([] if _stores_planes(conv, sip) else [conv.out_bytes])]
    is_in_phases = conv.strided and conv.which is ConvolutionPass.TO_INPUT
    moves = [stream(name, size, size, warm=False) for size in sizes]
    if is_in_phases and conv.planar and conv.itemsize == _WIDE:
        moves.append(stream(name, conv.in_bytes * conv.reached, conv.in_bytes, warm=False))
    return tuple(moves)


def _stores_planes(conv: Convolution, sip: SipSpec) -> bool:
    """Return whether a kernel that takes float32 channels-last makes planes of the result.

    cuDNN 8 names Ampere's so (``sm80_xmma_fprop_implicit_gemm_tf32f32..._nhwckrsc_nchw``), and
    takes them on later GPUs, Hopper among them. Version 7's calls, those of volumes, and
    instructions of a whole tile (``cutlass3x_sm100``) leave the result channels-last.
    """
    is_forward = conv.which is ConvolutionPass.FORWARD and conv.dims < _VOLUME
    is_whole = sip.pe.gemm.native_m >= _WHOLE_TILE_ROWS
    return conv.dtype == "tf32" and conv.planar and is_forward and conv.by_graph and not is_whole


def _pads(conv: Convolution) -> tuple[LibraryKernel, ...]:
    """Return the launches that pad channels which do not come in eights.

    Those of pictures are padded as they are loaded.
    """
    sizes = ((conv.in_channels, conv.in_bytes), (conv.out_channels, conv.out_bytes))
    return tuple(
        stream("conv_rearrange", number, number, warm=False)
        for channels, number in sizes
        if channels > _ALIGNED and channels % _ALIGNED and conv.groups == 1
    )


def by_channel(name: str, channels: int, read_bytes: float, written_bytes: float) -> LibraryKernel:
    """Return a launch with a block of threads for each channel, which goes through all of it.

    Few channels keep few PEs busy, and a block goes only as fast as the loads that it has under
    way. cuDNN's norms of planes over a batch say it in their names (``bn_fw_tr_1C11``).
    """
    trips = (read_bytes + written_bytes) / max(channels, 1) / _UNDER_WAY
    trip = Trip(loaded_bytes=read_bytes / max(channels * trips, 1e-9))
    stored = written_bytes / max(channels, 1)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=max(channels, 1), trips=trips, trip=trip, stored_bytes=stored),),
        resident=3,
        hbm_read_bytes=float(read_bytes),
        hbm_written_bytes=float(written_bytes),
    )


def _gradient_width(conv: Convolution) -> int:
    """Return how many channels' worth of work a gradient takes for each that it makes."""
    number, result = conv.widths
    if number == result and number > _GROUP_WIDTHS[-1] and conv.groups % _AT_A_TIME:
        number = math.ceil(number / _WIDE_TILE) * _WIDE_TILE
    return number + _LOADED_WIDTH


def _grouped(conv: Convolution) -> LibraryKernel:
    """Return the kernel of groups of other widths, channels-last: on the vector engine."""
    is_forward = conv.which is ConvolutionPass.FORWARD
    width = conv.widths[0] if is_forward else _gradient_width(conv)
    name = "conv_grouped_last" if is_forward else "conv_grouped_gradient_last"
    return _by_vector(name, conv, width, sum(conv.moved) / conv.itemsize)


def _direct(conv: Convolution, library: KernelLibrary) -> LibraryKernel:
    """Return the kernel of a convolution of each channel by itself.

    Each result takes its window from the cache; a weight's gradient sums over all positions.
    """
    is_weight = conv.which is ConvolutionPass.TO_WEIGHT
    elements = (conv.out_bytes if is_weight else conv.moved[1]) / conv.itemsize
    name = f"conv_depthwise{'_weight' * is_weight}{'_last' * (not conv.planar)}"
    of_its_own = f"{name}_{'float32' if conv.itemsize == _WIDE else 'early'}"
    if (conv.itemsize == _WIDE or conv.is_early) and of_its_own in library.names():
        name = of_its_own
    return _by_vector(name, conv, 1, elements)


def _by_vector(name: str, conv: Convolution, width: int, elements: float) -> LibraryKernel:
    """Return a launch on the vector engine that multiplies ``width`` channels for each result."""
    work = conv.out_positions * conv.out_channels * width * conv.taps
    count = max(1, math.ceil(elements / _TILE_ELEMENTS))
    read, written = conv.moved
    trip = Trip(simple=work / count, loaded_bytes=read / count)
    return LibraryKernel(
        name=name,
        tiles=(Tiles(count=count, trips=1, trip=trip, stored_bytes=written / count),),
        resident=8,
        hbm_read_bytes=float(read),
        hbm_written_bytes=float(written),
    )
