"""The vocabulary of a kernel's plan: commands, rolled loops, and the trace that holds them.

The evaluator (``kernel_ir``) writes a :class:`KernelTrace`; scheduling (``kernel_time``) gives its
commands a start and an end; replay executes them on data. A trace knows no tensor and no address:
pointers are *(parameter, byte offset)*, so one trace serves every launch of the same kernel with
the same grid and integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from kernbench.commands.rounding import Rounding
from kernbench.commands.separable import Predicate, Separable
from kernbench.dtypes import DType


class Space(StrEnum):
    """Where an operand lives."""

    HBM = "hbm"
    TCM = "tcm"
    HOST = "host"
    LINK = "link"
    """A transfer between SIPs: the far end's HBM, reached over links."""
    NONE = "none"


class Engine(StrEnum):
    """What executes a command; those of a PE are :data:`PE_ENGINES`."""

    DMA_IN = "dma_in"
    GEMM = "gemm"
    MATH = "math"
    DMA_OUT = "dma_out"
    LINK = "link"
    HOST = "host"


PE_ENGINES = (Engine.DMA_IN, Engine.GEMM, Engine.MATH, Engine.DMA_OUT)
"""The engines that every PE has, each with an in-order queue; a timeline shows them in this
order."""


class MathClass(StrEnum):
    """Cost class of one vector operation; a machine gives each a rate in elements per clock."""

    FREE = "free"
    """Only renames or reshapes a tile: trans, reshape, broadcast, splat."""
    SIMPLE = "simple"
    """add, mul, compare, select, min, max, bit operations."""
    DIVIDE = "divide"
    TRANSCENDENTAL = "transcendental"
    CONVERT = "convert"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in the user's kernel. ``scope`` is the inlined caller, innermost first."""

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else "unknown line"


UNKNOWN_LINE = SourceLine("", 0)


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A data tensor that every program holds one of, in TCM. Identity is the object itself.

    ``slot`` is unique within a trace and dense from 0.
    """

    slot: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Splat:
    """A constant of the kernel's text, the same in every element."""

    value: int | float | bool
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Param:
    """A floating-point argument of the kernel (index into its parameters), read at replay."""

    index: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class IndexTile:
    """An integer tensor that phase 1 knows, used as data: ``values`` seen as ``dtype``."""

    values: Separable
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


@dataclass(frozen=True, slots=True, eq=False)
class MaskTile:
    """A boolean tensor that phase 1 knows, used as data (``tl.where`` on an index comparison)."""

    values: Predicate

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


Operand = Tile | Splat | Param | IndexTile | MaskTile


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """The addresses that a load or store touches.

    Element address = address of parameter ``param`` + ``offset`` bytes + ``gather`` bytes.
    ``param`` is -1 for an absolute address (a pointer made from an integer). ``gather`` is an
    ``int64`` tile of byte offsets that only replay knows (indices that were loaded), or None.
    """

    param: int
    offset: Separable
    dtype: DType
    gather: Tile | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.offset.shape


MemoryOrder = Literal["relaxed", "acquire", "release", "acq_rel"]
MemoryScope = Literal["gpu", "cta", "sys"]

Mask = Predicate | Tile
"""Known to phase 1, or data. A true Predicate stands for "no mask"."""


@dataclass(frozen=True, slots=True, eq=False)
class Hint:
    """What a kernel tells the compiler of a value; its time and its numbers do not depend on it.

    ``name`` is ``divisibility``, ``contiguity``, ``constancy`` (``values`` has one per axis of the
    value), ``assume`` or ``barrier``, which is of no value.
    """

    name: str
    values: tuple[int, ...]
    line: SourceLine
    held: Separable | Predicate | None
    """The value; None where it is data, the result of the command that the hint is kept with."""
    step: int = 1
    """How far neighbours are apart: the size of an element in bytes for pointers."""
    wraps: bool = False
    """Whether the value was sent back into a range, as ``% n`` and ``tl.where`` do."""
    param: int = -1
    """The pointer that ``held`` is counted from, where only a launch knows how it is aligned."""


@dataclass(frozen=True, slots=True, eq=False)
class DmaRead:
    """Copy a tile from memory to TCM. Masked-off elements take ``other`` (0 when None).

    A ``volatile`` one has to see what others may write meanwhile; one that ``streams`` says that
    nobody wants its bytes again.
    """

    dst: Tile
    source: Access
    mask: Mask
    other: Operand | None
    line: SourceLine
    space: Space = Space.HBM
    volatile: bool = False
    hints: tuple[Hint, ...] = ()
    streams: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DmaWrite:
    """Copy a tile from TCM to memory where ``mask`` holds."""

    dest: Access
    value: Operand
    mask: Mask
    line: SourceLine
    space: Space = Space.HBM


@dataclass(frozen=True, slots=True, eq=False)
class Gemm:
    """``dst = a @ b + acc``, accumulated in ``dst``'s dtype. Shapes ``[..., m, k] [..., k, n]``.

    ``precision`` is Triton's ``inputPrecision``, which decides the time: ``ieee``, ``tf32``,
    ``tf32x3``, ``bf16x3`` or ``bf16x6``. ``rounding`` is what becomes of float32 operands before
    they are multiplied, which decides the numbers.
    """

    dst: Tile
    a: Operand
    b: Operand
    acc: Operand | None
    precision: str
    line: SourceLine
    rounding: Rounding = Rounding.NONE

    @property
    def flops(self) -> int:
        """Multiply-adds counted twice, for one program."""
        *batch, m, k = self.a.shape
        return 2 * int(np.prod(batch, dtype=np.int64)) * m * k * self.b.shape[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Math:
    """A vector operation. ``op`` is the TTIR name (``arith.addf``, ``math.exp``, ``tt.trans``).

    ``attrs`` by operation: ``predicate`` of ``arith.cmpi`` and ``arith.cmpf``; ``order`` of
    ``tt.trans`` (result axis ``i`` is source axis ``order[i]``); ``axis`` of ``tt.expand_dims``;
    ``index`` of ``tt.split`` (0 or 1: which half of the last axis); ``rounding`` of
    ``tt.fp_to_fp``; ``propagate_nan`` of ``tt.clampf``; ``symbol`` of ``tt.extern_elementwise``.
    Shapes of ``tt.splat``, ``tt.broadcast``, ``tt.reshape``, ``tt.join`` and ``tt.cat`` are those
    of ``dst``. ``tt.mx_decode`` stands for what ``tt.dot_scaled`` does to an operand: inputs are
    the elements and their scales, ``attrs`` the name ``elements`` of their type, ``axis`` (the
    product's inner one), ``packed_axis`` of 4-bit elements, and ``fast`` (a NaN scale need not make
    NaN). ``hints`` of any are what the kernel says of its result. Address arithmetic on data
    (``Access.gather``) is made of ``arith.extsi``, ``arith.muli``, ``arith.addi`` and the shape
    operations, on ``int64`` bytes.
    """

    dst: Tile
    op: str
    inputs: tuple[Operand, ...]
    cost: MathClass
    line: SourceLine
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """``tt.reduce`` along ``axis``: one destination per input.

    ``combine`` is the region's op for the common cases (``arith.addf``, ``arith.maxnumf``, ...;
    ``argmax`` and ``argmin`` for the two-input forms, ``argmaxu`` and ``argminu`` of unsigned
    values), else ``region``, with the scalar commands that combine two elements in ``region`` (over
    Tiles of shape ``()``).

    With ``scan`` (``forward``, or ``reverse`` from the far end) it is ``tt.scan``: what is combined
    so far is kept at every element, and destinations have the shape of their inputs.

    ``vector`` is how many elements of its tile each thread of a GPU has in a row; 0 where a product
    left them, and for a scan.
    """

    dsts: tuple[Tile, ...]
    combine: str
    inputs: tuple[Operand, ...]
    axis: int
    line: SourceLine
    region: CombineRegion | None = None
    scan: str = ""
    vector: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class CombineRegion:
    """A function of scalars: ``args`` in, ``commands`` (Math only), ``results`` out."""

    args: tuple[Tile, ...]
    commands: tuple[Math, ...]
    results: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A data value that a loop carries: ``init`` on entry, ``arg`` inside, ``result`` after."""

    init: Operand
    arg: Tile
    yielded: Operand
    result: Tile


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """``body`` repeated ``trip_count`` times; addresses and masks vary over ``loop_dim(loop_id)``.

    ``num_stages`` is the run-ahead that the kernel or the launch asked for (1: none).
    """

    loop_id: int
    trip_count: int
    body: tuple[Command, ...]
    carried: tuple[Carried, ...]
    num_stages: int
    line: SourceLine


@dataclass(frozen=True, slots=True, eq=False)
class Atomic:
    """An atomic read-modify-write of each element where ``mask`` holds.

    ``kind`` is Triton's (``add``, ``fadd``, ``max``, ``min``, ``umax``, ``umin``, ``and``, ``or``,
    ``xor``, ``exch``), or ``cas``, which writes ``value`` where the element is ``compare``, or
    ``load``, which changes nothing. ``dst`` takes the elements as they were, 0 where the mask does
    not hold; it is None when nothing reads it. Elements that several lanes or programs name are
    changed in program order. ``order`` is Triton's ``sem``: what a program wrote before a
    ``release`` is there before it, and what follows an ``acquire`` begins after it. ``scope`` is
    Triton's: whether threads of the program, the device or the system see it as one.
    """

    dst: Tile | None
    kind: str
    access: Access
    value: Operand
    compare: Operand | None
    mask: Mask
    line: SourceLine
    space: Space = Space.HBM
    order: MemoryOrder = "acq_rel"
    scope: MemoryScope = "gpu"


Transfer = DmaRead | DmaWrite | Atomic
"""The commands that touch memory."""

Printed = Operand | Access


@dataclass(frozen=True, slots=True, eq=False)
class Print:
    """``tl.device_print``: replay prints it for every program. Takes no modeled time.

    ``values`` are data, or pointers as :class:`Access`; ``signed`` says of each how its integers
    are meant.
    """

    prefix: str
    values: tuple[Printed, ...]
    signed: tuple[bool, ...]
    hex: bool
    line: SourceLine


@dataclass(frozen=True, slots=True, eq=False)
class Assert:
    """``tl.device_assert``: ``condition`` must hold in every element. Takes no modeled time."""

    condition: Operand
    message: str
    line: SourceLine


Command = Transfer | Gemm | Math | Reduce | Loop | Print | Assert


@dataclass(frozen=True, slots=True, eq=False)
class ProgramGroup:
    """The programs of a grid that take the same path, and that path.

    ``program_ids`` are linear ids (x fastest), rising; position ``i`` of a program dim in the
    group's terms is program ``program_ids[i]``.

    Programs may differ in how often they go around some loops: ``trips`` gives, by loop id, the
    trip count (at least 1) of each program, and the loop has that of the longest one. A program
    does the first iterations of such a loop and leaves out the others; :func:`by_path` turns the
    group into groups without ``trips``.
    """

    program_ids: npt.NDArray[np.int64]
    body: tuple[Command, ...]
    trips: tuple[tuple[int, npt.NDArray[np.int64]], ...] = ()
    hints: tuple[Hint, ...] = ()
    """What the kernel says of values that are no data."""


@dataclass(frozen=True, slots=True)
class AddressOverflow:
    """32-bit arithmetic that did not fit and became part of an address."""

    op: str
    line: SourceLine
    value: int
    """The exact result, which wrapped around."""
    use: SourceLine
    """Where it was added to a pointer."""

    def __str__(self) -> str:
        return (
            f"{self.op} at {self.line} gives {self.value}, which does not fit into 32 bits and is "
            f"added to a pointer at {self.use}; widen an operand with .to(tl.int64)"
        )


@dataclass(frozen=True, slots=True)
class Alignment:
    """An address that must be a multiple of some bytes: the pointer argument and what is added."""

    param: int
    residue: int
    """What is added to the pointer, modulo ``multiple``."""
    multiple: int
    line: SourceLine


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class KernelTrace:
    """Everything that one launch does, for all programs, without any data or address.

    Two launches with equal kernel text, grid, integer arguments and options share one trace
    (the same object), so a trace may serve as a key by identity.
    """

    name: str
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    groups: tuple[ProgramGroup, ...]
    num_slots: int
    """How many Tile slots there are; replay keeps its values in a list of this length."""
    tcm_bytes: int
    """TCM that one program needs, multi-buffering of pipelined loads included."""
    line: SourceLine
    pointer_params: tuple[int, ...]
    """Parameter indices that are pointers, rising."""
    overflows: tuple[AddressOverflow, ...] = ()
    """What wrapped around on the way to an address; with ``check`` that is an error."""
    alignments: tuple[Alignment, ...] = ()
    """What descriptors demand of the arguments' addresses."""
    staged_bytes: int = 0
    """Part of ``tcm_bytes``: buffers of loads that are issued ahead."""
    again: Callable[[], tuple[ProgramGroup, ...]] | None = field(default=None, repr=False)
    """Returns equal groups."""

    def release(self) -> None:
        """Let go of the groups, which are evaluated again for whoever asks for them."""
        if self.again is not None:
            with suppress(AttributeError):
                object.__delattr__(self, "groups")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[ProgramGroup, ...]:
            if name != "groups" or self.again is None:
                raise AttributeError(f"a trace has no {name}")
            result = self.again()
            object.__setattr__(self, "groups", result)
            return result

    @property
    def num_programs(self) -> int:
        x, y, z = self.grid
        return x * y * z

    def commands(self) -> Iterator[Command]:
        """Yield every command of every group, loops before their bodies.

        A loop of a group's ``trips`` has its longest program's trip count and terms.
        """
        for group in self.groups:
            yield from walk(group.body)


def walk(body: tuple[Command, ...]) -> Iterator[Command]:
    """Yield every command, a loop before its body."""
    for command in body:
        yield command
        if isinstance(command, Loop):
            yield from walk(command.body)


def access_of(command: Transfer) -> Access:
    """Return the addresses that a command touches."""
    if isinstance(command, DmaRead):
        return command.source
    return command.dest if isinstance(command, DmaWrite) else command.access


def with_access(command: Transfer, access: Access) -> Transfer:
    """Return a command that touches other addresses."""
    if isinstance(command, DmaRead):
        return replace(command, source=access)
    if isinstance(command, DmaWrite):
        return replace(command, dest=access)
    return replace(command, access=access)
