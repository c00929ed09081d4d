"""TTIR text to a module that may be evaluated: parsed, and held against each operation's rule."""

from __future__ import annotations

from kernbench.kernel_ir.ops import RULES
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
    verify(module.functions, RULES)
    return module
