"""When a value is last read, so that a strand does not keep dead values."""

from __future__ import annotations

from collections import Counter

from kernbench.kernel_ir import Block, Module, Value


class Liveness:
    """Last uses inside of blocks, computed once per block."""

    def __init__(self, module: Module) -> None:
        self._uses = Counter(module.reads())
        self._known: dict[Block, dict[Value, int]] = {}

    def last_uses(self, block: Block) -> dict[Value, int]:
        """Return, of the values that a block makes and only it reads, where it does so last.

        The place is an index of the block's operations; of a value that is never read, where it
        is made.
        """
        uses = self._known.get(block)
        if uses is None:
            uses = self._known[block] = self._find(block)
        return uses

    def _find(self, block: Block) -> dict[Value, int]:
        last = dict.fromkeys(block.args, -1)
        inside = Counter[Value]()
        for index, op in enumerate(block.ops):
            for value in op.reads():
                inside[value] += 1
                if value in last:
                    last[value] = index
            last.update(dict.fromkeys(op.results, index))
        return {value: at for value, at in last.items() if inside[value] == self._uses[value]}
