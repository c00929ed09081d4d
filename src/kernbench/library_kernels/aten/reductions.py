"""Reductions over dims, by the blocks and splits that ``setReduceConfig`` of Reduce.cuh chooses."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.hardware import SipSpec
from kernbench.library_kernels.aten.unlike import alike, unlike
from kernbench.library_kernels.blocks import BlockLaunch, Sweep

_MOST_THREADS, _WARP = 512, 32
_VECTOR = 4
"""Elements that a thread has under way: a vector, or as many loads. Of moments fewer."""
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""Values of a thread: with fewer than the first nothing is split over blocks, with more than the
second everything is."""
_LEAST_VECTORIZED = 128
_MOMENTS_AT_A_TIME = 2
_MOMENT_CYCLES = 0.48
"""In which a PE issues an element's part in moments, some 60 instructions: TritonBench's gelu_std
of 134 million floats, less its gelu, on an A100."""
_STEP_CYCLES = 60
"""A step of a block's tree: shared memory and a barrier, or a shuffle."""
_LAST_CYCLES = 2000
"""A block writes its part, makes it visible to all, counts itself, and the last of an output reads
those of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A reduction of contiguous memory."""

    outputs: int
    inputs: int
    """How many inputs each output has."""
    run: int
    """Elements beside each other that are all reduced, or all kept."""
    is_along: bool
    """Whether it reduces what lies beside each other."""
    itemsize: int
    out_itemsize: int
    is_of_moments: bool = False
    """Whether it finds means and deviations, element by element (Welford's way)."""


def reduction(problem: Reduction, sip: SipSpec) -> BlockLaunch:
    """Return the launch of a reduction."""
    size = problem.itemsize
    at_a_time = _MOMENTS_AT_A_TIME if problem.is_of_moments else _VECTOR
    along, vector = problem.is_along, 1
    width, height = (problem.run, problem.outputs) if along else (problem.run, problem.inputs)
    most = _MOST_THREADS
    if along and problem.run >= _LEAST_VECTORIZED:
        width //= at_a_time
    elif not along:
        while vector < _VECTOR and width % (2 * vector) == 0:
            vector *= 2
        width //= vector
        most //= vector
    width, height = _block(width, height, most)
    per_block = 1 if along else width * vector
    values = -(-problem.inputs // width) if along else problem.inputs
    steps = (width if along else 1).bit_length()
    if values >= height * _LEAST_VALUES or values >= _MOST_VALUES:
        values = -(-values // height)
        steps += height.bit_length()
        is_shared = True
    else:
        per_block *= height
        is_shared = False
    grid = -(-problem.outputs // per_block)
    threads = width * height
    splits = 1
    warps = sip.pe.warps
    held = 1 if warps is None else max(warps.resident * warps.lanes // threads, 1)
    room = sip.num_pes * held
    if is_shared and values >= _MOST_VALUES and grid <= room:
        few = min(-(-room // grid), -(-values // _LEAST_VALUES))
        splits = max(few, -(-values // _MOST_VALUES))
    read = problem.outputs * problem.inputs * size
    blocks = grid * splits
    return BlockLaunch(
        name="reduce",
        blocks=blocks,
        threads=threads,
        sweeps=(Sweep(loaded_bytes=read / blocks, under_way=threads * at_a_time * vector * size),),
        issue_cycles=_MOMENT_CYCLES * problem.is_of_moments * read / size / blocks,
        serial_cycles=steps * _STEP_CYCLES + _LAST_CYCLES * (splits > 1),
        most_resident=max(2048 // _MOST_THREADS * (_MOST_THREADS // threads), 1),
        hbm_read_bytes=read,
        hbm_written_bytes=problem.outputs * problem.out_itemsize,
    )


def log_sum_exp(problem: Reduction, sip: SipSpec) -> tuple[BlockLaunch, ...]:
    """Return the launches of the logarithm of a sum of exponentials.

    Maxima; what all are less than them, and its exponentials, each in memory; their sums. Five more
    make infinite maxima zero, and take the logarithm and add (``logsumexp_out_impl``).
    """
    elements, size = problem.outputs * problem.inputs, problem.itemsize
    read, number = elements * size, problem.outputs * size
    reduced = reduction(problem, sip)
    small = alike(problem.outputs, number, number)
    less = unlike(elements, read + number, read)
    return (reduced, *(small,) * 3, less, alike(elements, read, read), reduced, small, small)


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    """Return a block of threads for so many elements by so many, both powers of two."""
    widest, highest = (
        1 << min(max(number, 1), most).bit_length() - 1 for number in (width, height)
    )
    across = min(widest, _WARP)
    down = min(highest, most // across)
    return min(widest, most // down), down
