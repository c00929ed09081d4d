"""Inline assembly: single PTX instructions on float32 that CUDA's math library has as functions.

PyTorch's compiler writes such where it wants one rounding, as in ``fma.rn.f32 $0, $1, $2, $3;``.
What the hardware approximates is rounded to the nearest number, and subnormal numbers stay where
``ftz`` would make them 0.

Source: NVIDIA, "Parallel Thread Execution ISA", floating point instructions.
"""

from __future__ import annotations

import re

_INSTRUCTION = re.compile(r"(\w+)((?:\.\w+)*)\.f32((?:,?\$\d+)+);?")
_DIRECTIONS = {"rn": "rn", "rz": "rz", "rm": "rd", "rp": "ru"}
_ROUNDED = {
    "fma": "fmaf", "add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rcp": "frcp",
    "sqrt": "fsqrt",
}  # fmt: skip
"""Functions of which there is one for each direction of rounding."""
_OTHERS = {
    "rsqrt": "rsqrtf", "ex2": "exp2f", "lg2": "log2f", "sin": "sinf", "cos": "cosf",
    "tanh": "tanhf", "abs": "fabsf", "min": "fminf", "max": "fmaxf",
}  # fmt: skip
_HARMLESS = frozenset({"approx", "full", "ftz"})


def symbol_of(text: str, constraints: str, num_operands: int) -> str | None:
    """Return the symbol of the function that an assembly text computes, None if it is no such.

    ``constraints`` without blanks are those of LLVM: all of float32 registers, ``=f,f``.
    """
    result = _INSTRUCTION.fullmatch(re.sub(r"\s+", "", text))
    registers = ",".join(["=f", *["f"] * num_operands])
    if result is None or constraints != registers:
        return None
    opcode, modifiers, operands = result.groups()
    if operands != ",".join(f"${number}" for number in range(num_operands + 1)):
        return None
    left = {word for word in modifiers.split(".") if word} - _HARMLESS
    if opcode in _OTHERS:
        return None if left else f"__nv_{_OTHERS[opcode]}"
    if opcode not in _ROUNDED or len(left) > 1 or not left <= _DIRECTIONS.keys():
        return None
    direction = _DIRECTIONS[left.pop() if left else "rn"]
    return f"__nv_{_ROUNDED[opcode]}_{direction}"
