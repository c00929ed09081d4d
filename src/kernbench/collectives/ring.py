"""Ring algorithms: every rank sends to its successor only, a chunk per step.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009; the order of chunks is NCCL's (src/device/all_reduce.h), moved by
one so that rank ``r`` ends the reduce-scatter with chunk ``r``.
"""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, in_one_round, shared_index
from kernbench.collectives.schedule import Step

CHAIN_CHUNK_BYTES = 128 * 1024
MAX_CHAIN_CHUNKS = 1024


def all_reduce(asked: Request) -> Plan:
    """Return a reduce-scatter ring followed by an all-gather ring: ``2 (n - 1)`` steps.

    Chunk ``c`` is reduced in the order ``c + 1, c + 2, ..., c`` (modulo n), then handed on.
    """
    bounds, reduce_steps = reduce_scatter(asked)
    return bounds, reduce_steps + all_gather(asked)[1]


def reduce_scatter(asked: Request) -> Plan:
    """Return ``n - 1`` steps after which rank ``r`` holds the reduced chunk ``r``."""
    steps = _steps(asked.num_ranks, first_chunk=-1, reduce=True)
    return even_bounds(asked.num_elements, asked.num_ranks), steps


def all_gather(asked: Request) -> Plan:
    """Return ``n - 1`` steps that hand chunk ``r`` of rank ``r`` around the ring."""
    steps = _steps(asked.num_ranks, first_chunk=0, reduce=False)
    return even_bounds(asked.num_elements, asked.num_ranks), steps


def bidirectional_all_reduce(asked: Request) -> Plan:
    """Return two rings at once, each with half of the tensor, in opposite directions."""
    n = asked.num_ranks
    src = shared_index(np.arange(n))
    before = shared_index((np.arange(n) - 1) % n)
    steps: list[Step] = []
    for clockwise in all_reduce(asked)[1]:
        # The mirror image: rank -r sends chunk -c, of the second half.
        mirrored = shared_index(n + -clockwise.chunk[-src % n] % n)
        steps += in_one_round([clockwise, Step(src, before, mirrored, clockwise.reduce)])
    return even_bounds(asked.num_elements, 2 * n), tuple(steps)


def reduce(asked: Request) -> Plan:
    """Return a pipelined chain to the root, which adds up all ranks before it."""
    bounds, steps = broadcast(asked)
    # The broadcast backwards: last step first, every transfer the other way round.
    back = tuple(Step(step.dst, step.src, step.chunk, reduce=True) for step in reversed(steps))
    return bounds, back


def broadcast(asked: Request) -> Plan:
    """Return a pipelined chain from the root: a rank forwards a chunk while it receives the next.

    The chunks are of 128 KiB, or larger so that there are at most 1 024.
    """
    n = asked.num_ranks
    size_bytes = asked.num_elements * asked.itemsize
    num_chunks = min(max(-(-size_bytes // CHAIN_CHUNK_BYTES), 1), MAX_CHAIN_CHUNKS)
    chain = (np.arange(n) + asked.root) % n
    senders, receivers = shared_index(chain[:-1]), shared_index(chain[1:])
    falling = shared_index(np.arange(num_chunks)[::-1])
    steps = []
    for number in range(num_chunks + n - 2 if n > 1 else 0):
        # The rank at place p of the chain sends chunk number - p.
        first = max(number - num_chunks + 1, 0)
        end = min(number, n - 2) + 1
        at = num_chunks - 1 - (number - first)
        chunks = falling[at : at + end - first]
        steps.append(Step(senders[first:end], receivers[first:end], chunks, reduce=False))
    return even_bounds(asked.num_elements, num_chunks), tuple(steps)


def _steps(num_ranks: int, first_chunk: int, reduce: bool) -> tuple[Step, ...]:
    """Return n - 1 steps: in step s rank r sends chunk ``r + first_chunk - s`` to ``r + 1``."""
    src = shared_index(np.arange(num_ranks))
    dst = shared_index((np.arange(num_ranks) + 1) % num_ranks)
    # Every step's chunks are a window of this, so that a thousand ranks need no memory per step.
    twice = shared_index(np.concatenate([src, src]))
    starts = [(first_chunk - number) % num_ranks for number in range(num_ranks - 1)]
    return tuple(Step(src, dst, twice[at : at + num_ranks], reduce) for at in starts)
