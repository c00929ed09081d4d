"""What a kernel tells the compiler of its values: ``tl.multiple_of``, ``tl.assume`` and the like.

Nothing here depends on hints, as TTIR is all that is compiled. A GPU's code does: they are kept for
whoever holds them against the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernbench.commands import DmaRead, Hint, Math, Predicate, Separable, Tile
from kernbench.kernel_ir.evaluation.values import Held, Pointer
from kernbench.kernel_ir.text.ir import Op

if TYPE_CHECKING:
    from kernbench.kernel_ir.evaluation.evaluator import Evaluator

NAMES = {
    "tt.divisibility": "divisibility",
    "tt.contiguity": "contiguity",
    "tt.constancy": "constancy",
}
"""The attributes of an operation that speak of its result."""
_SENT_BACK = frozenset({"arith.remsi", "arith.remui", "arith.select"})
_BASE_BYTES = 16
"""What the address of an argument is known to be a multiple of, where Triton says so; no access of
a thread moves more."""


def note_hints(run: Evaluator, op: Op) -> None:
    """Keep the hints that an operation carries, with its result."""
    wraps = op.name in _SENT_BACK
    hints = [
        Hint(name, _numbers(op.attrs[attr]), op.line, None, 1, wraps)
        for attr, name in NAMES.items()
        if attr in op.attrs
    ]
    keep_hints(
        run, hints, run.get(op.results[0]), op.operands[0].type.dtype if op.operands else None
    )


def keep_hints(run: Evaluator, hints: Iterable[Hint], held: Held, pointed: Any = None) -> None:
    """Keep hints with a value that is known, or with the command that computes it."""
    if isinstance(held, Separable | Predicate):
        run.hints += [replace(hint, held=held) for hint in hints]
    elif isinstance(held, Pointer):
        if held.gather is None and pointed is not None:
            param = -1 if _is_aligned(run, held) else held.param
            for hint in hints:
                known = replace(hint, held=held.offset, step=pointed.itemsize)
                if hint.name == "divisibility":
                    values = tuple(math.gcd(value, _BASE_BYTES) for value in hint.values)
                    known = replace(known, values=values, param=param)
                run.hints.append(known)
    elif isinstance(held, Tile):
        _keep_with_command(run, tuple(hints), held)


def _keep_with_command(run: Evaluator, hints: tuple[Hint, ...], tile: Tile) -> None:
    for at in range(len(run.commands) - 1, -1, -1):
        command = run.commands[at]
        if isinstance(command, Math) and command.dst is tile:
            attrs = {**command.attrs, "hints": (*command.attrs.get("hints", ()), *hints)}
            run.commands[at] = replace(command, attrs=attrs)
            return
        if isinstance(command, DmaRead) and command.dst is tile:
            run.commands[at] = replace(command, hints=(*command.hints, *hints))
            return


def _is_aligned(run: Evaluator, pointer: Pointer) -> bool:
    """Return whether the address that a pointer is counted from is known to be aligned."""
    own = (param for param in run.module.kernel.params if param.index == pointer.param)
    return any(param.attrs.get("tt.divisibility") == _BASE_BYTES for param in own)


def _numbers(attr: Any) -> tuple[int, ...]:
    """Return the numbers of ``dense<16>``, ``dense<[1, 64]>`` or ``array<i32: 1, 64>``."""
    if isinstance(attr, tuple):
        return tuple(int(item) for item in attr)
    return tuple(int(item) for item in re.findall(r"-?\d+", str(attr)))
