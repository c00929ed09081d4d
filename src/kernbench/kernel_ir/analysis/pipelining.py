"""Which loops Triton's pipeliner would run ahead, and which loads it would multi-buffer."""

from __future__ import annotations

import functools

from kernbench.kernel_ir.text.ir import Op, Value

_LOADS = ("tt.load", "tt.descriptor_load", "tt.experimental_descriptor_load")
DOTS = ("tt.dot", "tt.dot_scaled", "ttng.warp_group_dot")
LOOPS = ("scf.for", "scf.while")


def accumulator_of(dot: Op) -> Value:
    """Return what a product is added to."""
    return dot.operands[2 if dot.name == "ttng.warp_group_dot" else -1]


def num_stages_of(loop: Op, launch_num_stages: int) -> int:
    """Return how many iterations of a loop are in flight at once (1: one after another).

    The loop's own ``num_stages`` (``tl.range(..., num_stages=n)``) wins over the launch's, which
    counts only for loops that feed a ``tt.dot``. A loop around another loop is not pipelined.
    """
    if not pipelined_loads(loop):
        return 1
    own = loop.attrs.get("tt.num_stages")
    return max(int(own if isinstance(own, int) else launch_num_stages), 1)


# A memo, not state: operations do not change.
@functools.lru_cache(maxsize=1024)
def pipelined_loads(loop: Op) -> tuple[Op, ...]:
    """Return the loads of a loop that are issued ahead.

    Those that feed a ``tt.dot`` through any chain of operations, or all loads where the loop asks
    for stages itself.
    """
    body = loop.regions[0].entry.ops
    if any(op.name in LOOPS for op in loop.regions[0].walk()):
        return ()
    loads = tuple(op for op in body if op.name in _LOADS)
    if "tt.num_stages" in loop.attrs:
        return loads
    feeding: set[Value] = set()
    for op in reversed(body):
        if op.name in DOTS:
            # The accumulator is not streamed in.
            feeding |= set(op.operands[:2])
        elif any(result in feeding for result in op.results):
            feeding |= set(op.operands)
    return tuple(op for op in loads if any(result in feeding for result in op.results))


def buffered_stages(loop: Op, num_stages: int) -> int:
    """Return for how many of its stages a loop's loads have buffers.

    All, unless addresses are loaded in the loop, too: those loads run ahead of the others, and of
    the stages each gets a share.
    Source: what Triton 3.9 takes of shared memory for 8.0, with 3 to 6 stages.
    """
    ahead = set(pipelined_loads(loop))
    depths: dict[Value, int] = {}
    deepest = 1
    for op in loop.regions[0].entry.ops:
        depth = max((depths.get(operand, 0) for operand in op.operands), default=0)
        if op in ahead:
            depth += 1
            deepest = max(deepest, depth)
        depths.update(dict.fromkeys(op.results, depth))
    return max(num_stages - 1, 0) // deepest + 1
