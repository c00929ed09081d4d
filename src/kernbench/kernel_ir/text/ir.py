"""Typed SSA: what TTIR text becomes. Plain data, immutable after parsing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kernbench.commands import SourceLine
from kernbench.dtypes import DType


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

    def __str__(self) -> str:
        return self.text

    @property
    def is_float(self) -> bool:
        return not self.is_pointer and self.dtype is not None and self.dtype.is_floating_point

    @property
    def is_bool(self) -> bool:
        return not self.is_pointer and self.dtype is not None and self.dtype.name == "bool"

    @property
    def is_int(self) -> bool:
        """Whether elements are integers of more than one bit (``index`` counts as 64 bits)."""
        return not (
            self.is_pointer
            or self.is_descriptor
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


@dataclass(eq=False, slots=True)
class Successor:
    """A block that a branch may go to, and the values it hands over."""

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
    def used_values(self) -> frozenset[Value]:
        """Every value that some operation reads."""
        used: set[Value] = set()
        pending = [function.body for function in self.functions.values()]
        while pending:
            for block in pending.pop().blocks:
                for op in block.ops:
                    used.update(op.operands)
                    for successor in op.successors:
                        used.update(successor.operands)
                    pending += op.regions
        return frozenset(used)
