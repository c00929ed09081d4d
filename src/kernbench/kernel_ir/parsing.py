"""TTIR text to a module that may be evaluated: parsed, and held against each operation's rule."""

from __future__ import annotations

from kernbench.kernel_ir.ops import RULES
from kernbench.kernel_ir.ops.descriptors import DESCRIPTOR, DESCRIPTOR_MARK
from kernbench.kernel_ir.ops.diagnostics import message_of
from kernbench.kernel_ir.text.ir import Module
from kernbench.kernel_ir.text.parser import parse_unverified
from kernbench.kernel_ir.text.verify import verify


def parse_module(text: str) -> Module:
    """Return the functions of a TTIR module.

    Raises:
        KernelParseError: The text is not TTIR that we can read, or an operation in it takes values
            that it cannot; names the line of the text.
    """
    module = parse_unverified(text)
    for op in module.walk():
        if op.name == "tt.print" and message_of(op) == DESCRIPTOR_MARK:
            op.name = DESCRIPTOR
    verify(module.functions, RULES)
    return module
