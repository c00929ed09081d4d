"""Which branches between blocks close a loop: the order of blocks in the text does not say it."""

from __future__ import annotations

from kernbench.kernel_ir import Block, Region


class BackBranches:
    """Branches that go back in a loop, each found once per launch."""

    def __init__(self) -> None:
        self._known: dict[tuple[Block, Block], bool] = {}

    def closes_loop(self, region: Region, source: Block, target: Block) -> bool:
        """Whether a branch goes to a block above it from which control comes back to it.

        Every loop has such a branch. One that only goes up leaves for a block that several places
        share, such as a kernel's return: MLIR prints it where it is first named.
        """
        loop = self._known.get((source, target))
        if loop is None:
            loop = self._known[source, target] = _closes_loop(region, source, target)
        return loop


def _closes_loop(region: Region, source: Block, target: Block) -> bool:
    labels = [block.label for block in region.blocks]
    if labels.index(target.label) > labels.index(source.label):
        return False
    seen, left = {target}, [target]
    while left:
        block = left.pop()
        if block is source:
            return True
        # The last operation of a block is its branch.
        for successor in block.ops[-1].successors if block.ops else ():
            after = region.blocks[labels.index(successor.label)]
            if after not in seen:
                seen.add(after)
                left.append(after)
    return False
