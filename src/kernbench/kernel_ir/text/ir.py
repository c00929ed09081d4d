"""Typed SSA: what TTIR text becomes. Plain data, immutable after parsing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kernbench.commands import SourceLine
from kernbench.dtypes import DType


def arith(names: str) -> frozenset[str]:
    """Return operations of the dialect ``arith`` by their names in it."""
    return frozenset(f"arith.{name}" for name in names.split())


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: a scalar (``shape == ()``) or a tensor of one element type.

    For a pointer (or a tensor of pointers) ``dtype`` is what it points to; for a tensor descriptor
    ``shape`` and ``dtype`` are those of its block. ``dtype`` is None for types that no command can
    hold (``i128``, tokens); they may be passed around but not computed with.
    """

    text: str
    shape: tuple[int, ...]
    dtype: DType | None
    is_pointer: bool = False
    is_descriptor: bool = False
    is_shared: bool = False
    """Whether it names shared memory (Gluon), which holds a tensor of this shape."""

    def __str__(self) -> str:
        return self.text

    @property
    def is_float(self) -> bool:
        if self.is_pointer or self.is_shared or self.dtype is None:
            return False
        return self.dtype.is_floating_point

    @property
    def is_bool(self) -> bool:
        if self.is_pointer or self.is_shared or self.dtype is None:
            return False
        return self.dtype.name == "bool"

    @property
    def is_int(self) -> bool:
        """Whether elements are integers of more than one bit (``index`` counts as 64 bits)."""
        return not (
            self.is_pointer
            or self.is_descriptor
            or self.is_shared
            or self.dtype is None
            or self.dtype.is_floating_point
            or self.dtype.name == "bool"
        )

    @property
    def bits(self) -> int:
        assert self.dtype is not None
        return self.dtype.bits


@dataclass(eq=False, slots=True)
class Value:
    """One SSA value; identity is the object itself."""

    name: str
    type: Type


@dataclass(eq=False, slots=True)
class Op:
    """One operation. ``name`` is dialect and mnemonic, e.g. ``arith.addi``."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: dict[str, Any]
    regions: tuple[Region, ...]
    line: SourceLine
    text_line: int
    """Line of the TTIR text, counted from 1."""
    successors: tuple[Successor, ...] = ()

    @property
    def dialect(self) -> str:
        return self.name.partition(".")[0]

    def reads(self) -> Iterator[Value]:
        """Yield every value that it or an operation of its regions reads."""
        yield from self.operands
        for successor in self.successors:
            yield from successor.operands
        for region in self.regions:
            yield from region.reads()


@dataclass(eq=False, slots=True)
class Successor:
    """A block that a branch may go to, and the values that it passes."""

    label: str
    operands: tuple[Value, ...]


@dataclass(eq=False, slots=True)
class Block:
    label: str
    args: tuple[Value, ...]
    ops: tuple[Op, ...]


@dataclass(eq=False, slots=True)
class Region:
    blocks: tuple[Block, ...]

    @property
    def entry(self) -> Block:
        return self.blocks[0]

    def walk(self) -> Iterator[Op]:
        """Yield every operation, each before those inside it."""
        for block in self.blocks:
            for op in block.ops:
                yield op
                for inner in op.regions:
                    yield from inner.walk()

    def reads(self) -> Iterator[Value]:
        """Yield every value that an operation reads, as often as one does."""
        for block in self.blocks:
            for op in block.ops:
                yield from op.reads()


@dataclass(eq=False, slots=True)
class Parameter:
    """One parameter of a function, in the order of the TTIR text."""

    index: int
    name: str
    type: Type
    value: Value
    attrs: dict[str, Any]

    @property
    def is_pointer(self) -> bool:
        return self.type.is_pointer

    @property
    def dtype(self) -> DType | None:
        """Element type of a scalar, or what a pointer points to."""
        return self.type.dtype


@dataclass(eq=False, slots=True)
class Function:
    name: str
    params: tuple[Parameter, ...]
    result_types: tuple[Type, ...]
    body: Region
    is_public: bool
    attrs: dict[str, Any]
    line: SourceLine


@dataclass(eq=False)
class Module:
    """All functions of one TTIR text."""

    functions: dict[str, Function]
    text: str = field(repr=False)

    @property
    def kernel(self) -> Function:
        """The function that a launch runs: the public one."""
        for function in self.functions.values():
            if function.is_public:
                return function
        return next(iter(self.functions.values()))

    @cached_property
    def is_gluon(self) -> bool:
        """Whether the kernel chooses layouts and manages shared memory itself."""
        return '"ttg.num-warps"' in self.text

    @cached_property
    def used_values(self) -> frozenset[Value]:
        """Every value that some operation reads."""
        return frozenset(self.reads())

    def reads(self) -> Iterator[Value]:
        """Yield every value that an operation reads, as often as one does."""
        for function in self.functions.values():
            yield from function.body.reads()

    def walk(self) -> Iterator[Op]:
        """Yield every operation of all functions."""
        for function in self.functions.values():
            yield from function.body.walk()
