"""Layer norms and softmax: a block for each row, which it goes over several times.

Sources: ``vectorized_layer_norm_kernel`` of ``layer_norm_kernel.cu``, ``softmax_warp_forward`` of
``PersistentSoftmax.cuh``, ``cunn_SoftMaxForward``, ``cunn_SoftMaxForwardSmem`` and
``cunn_SpatialSoftMaxForward`` of ``SoftMax.cu``. What a later pass reads comes from the cache, as
far as it holds the rows that are under way.
"""

from __future__ import annotations

from dataclasses import replace

from kernbench.hardware import SipSpec
from kernbench.library_kernels.aten.unlike import alike
from kernbench.library_kernels.blocks import BlockLaunch, Sweep
from kernbench.library_kernels.engine import kept_share

_VECTOR = 4
"""Elements that a thread of a layer norm loads at a time, whatever their dtype."""
_NORM_THREADS, _MOMENT_THREADS, _SCALE_THREADS = 128, 512, 256
_EXACT = 1 << 24
"""Elements of a row that float32 still counts one by one."""
_NORM_CYCLES = 380
"""In which a PE issues a row's shuffles, its exchange and its vectors, of a short row as of a long
one. Fitted to timm's ConvNeXt-Atto-OLS, whose rows have 40 to 320 elements, on RTX 3090; RTX 4090,
RTX 5090 and RTX PRO 6000 ask for 390 to 430 (docs/model/norms-and-reductions.md)."""
_IN_REGISTERS = 1024
"""Elements of a row that a warp of a softmax keeps."""
_WARPS = 4
"""Warps of such a block, which have two rows each of at most ``_SHORT`` elements, else one."""
_SHORT = 128
_SOFTMAX_THREADS = 1024
_WIDE_BYTES = 16
_SHARED_BYTES = 48 << 10
"""Shared memory that a block has without asking for more."""
IN_SHARED_MEMORY = (2, 4)
"""The first release that keeps rows there (PyTorch, pull request 122970)."""
_EXCHANGE_CYCLES = 300
"""In which 1024 threads combine a value each by shuffles, shared memory and barriers."""
_EARLY_CYCLES = 1500
"""The same before 2.4: a warp goes over shared memory one value after another."""
_WITH_STORES = 4 / 3
"""What a row takes of the cache, relative to its bytes: results come in while it is still needed.
Of neusight-vec's layer norms and softmax, rows of A100 and L4 ask for 1.25 to 1.4, of V100 for
0.9."""


def layer_norm(rows: int, cols: int, itemsize: int, sip: SipSpec) -> tuple[BlockLaunch, ...]:
    """Return the launches of a layer norm or RMS norm: a row is read twice."""
    row = cols * itemsize
    if cols % _VECTOR == 0 and cols <= _EXACT and itemsize < 8:
        under_way = _NORM_THREADS * _VECTOR * itemsize
        moments = Sweep(loaded_bytes=row, under_way=under_way)
        launch = BlockLaunch(
            name="layer_norm",
            blocks=rows,
            threads=_NORM_THREADS,
            sweeps=(moments, replace(moments, stored_bytes=row)),
            issue_cycles=_NORM_CYCLES,
            hbm_read_bytes=rows * row,
            hbm_written_bytes=rows * row,
        )
        return (_reread(launch, row, sip),)
    return (
        moments_of(rows, row, itemsize),
        BlockLaunch(
            name="layer_norm_scale",
            blocks=rows,
            threads=_SCALE_THREADS,
            sweeps=(
                Sweep(loaded_bytes=row, under_way=_SCALE_THREADS * itemsize, stored_bytes=row),
            ),
            hbm_read_bytes=rows * row,
            hbm_written_bytes=rows * row,
        ),
    )


def moments_of(rows: int, row_bytes: int, itemsize: int) -> BlockLaunch:
    """Return the launch of ``RowwiseMomentsCUDAKernel``: a block a row, an element a thread."""
    threads = _MOMENT_THREADS if row_bytes >= _MOMENT_THREADS * itemsize else 32
    return BlockLaunch(
        name="moments",
        blocks=rows,
        threads=threads,
        sweeps=(Sweep(loaded_bytes=row_bytes, under_way=threads * itemsize),),
        hbm_read_bytes=rows * row_bytes,
    )


def softmax(
    rows: int, cols: int, itemsize: int, sip: SipSpec, is_early: bool = False
) -> BlockLaunch:
    """Return the launch of a softmax or log-softmax over the last dim of contiguous rows.

    ``is_early``: by a release before :data:`IN_SHARED_MEMORY`.
    """
    row = cols * itemsize
    if cols <= _IN_REGISTERS and row <= _IN_REGISTERS * 4:
        return _in_registers(rows, row, row, 2 if cols <= _SHORT else 1)
    threads, trips = min(cols, _SOFTMAX_THREADS), -(-row // (_SOFTMAX_THREADS * _WIDE_BYTES))
    if is_early:
        threads, trips = _early_trips(cols, itemsize)
    sweep = Sweep(loaded_bytes=row, under_way=row / trips)
    launch = BlockLaunch(
        name="softmax",
        blocks=rows,
        threads=threads,
        sweeps=(sweep,),
        serial_cycles=2 * (_EARLY_CYCLES if is_early else _EXCHANGE_CYCLES),
        hbm_read_bytes=rows * row,
        hbm_written_bytes=rows * row,
    )
    if not is_early and row < _SHARED_BYTES and row % _WIDE_BYTES == 0:
        return replace(launch, sweeps=(replace(sweep, stored_bytes=row),))
    launch = replace(launch, sweeps=(sweep, sweep, replace(sweep, stored_bytes=row)))
    return _reread(launch, row, sip)


def _early_trips(cols: int, itemsize: int) -> tuple[int, int]:
    """Return the threads of a block before 2.4, and the trips of each of its loops over a row.

    Vectors of all threads first, then what is left, an element a thread.
    """
    wide = _WIDE_BYTES // itemsize
    threads = 32
    while threads < min(cols // wide, _SOFTMAX_THREADS) // 2:
        threads *= 2
    left = cols % (wide * threads)
    return threads, cols // (wide * threads) + -(-left // threads) + (cols % wide > 0)


def softmax_backward(
    rows: int, cols: int, itemsize: int, sip: SipSpec, of_log: bool
) -> tuple[BlockLaunch, ...]:
    """Return the launches of the gradient, which sums up that of the result first.

    Unless it is of a logarithm, another launch multiplies that by the result before.
    """
    row = cols * itemsize
    if cols <= _IN_REGISTERS and row <= _IN_REGISTERS * 4:
        launch = _in_registers(rows, 2 * row, row, 2 if cols <= _SHORT else 1)
    else:
        threads = min(cols, _SOFTMAX_THREADS)
        gradient = Sweep(loaded_bytes=row, under_way=threads * _WIDE_BYTES)
        launch = BlockLaunch(
            name="softmax_backward",
            blocks=rows,
            threads=threads,
            sweeps=(gradient, replace(gradient, stored_bytes=row)),
            serial_cycles=_EXCHANGE_CYCLES,
            hbm_read_bytes=rows * row,
            hbm_written_bytes=rows * row,
        )
        launch = _reread(launch, row, sip)
        first, again = launch.sweeps
        # The result comes beside the gradient, and comes once.
        last = replace(
            again, loaded_bytes=2 * row, under_way=2 * again.under_way, cached=again.cached / 2
        )
        launch = replace(
            launch, sweeps=(first, last), hbm_read_bytes=launch.hbm_read_bytes + rows * row
        )
    if of_log:
        return (launch,)
    return alike(rows * cols, 2 * rows * row, rows * row), launch


def spatial_softmax(outer: int, cols: int, inner: int, itemsize: int, sip: SipSpec) -> BlockLaunch:
    """Return the launch of a softmax over a dim with others inside: a thread goes over each slice.

    Of few slices, several threads share one.
    """
    across = min(inner, _SOFTMAX_THREADS)
    along = 1
    if across <= 64 and cols >= 64:
        while 2 * across * along <= _SOFTMAX_THREADS and 2 * along <= cols:
            along *= 2
    size = across * cols * itemsize
    sweep = Sweep(loaded_bytes=size, under_way=across * along * itemsize)
    blocks = outer * -(-inner // across)
    launch = BlockLaunch(
        name="spatial_softmax",
        blocks=blocks,
        threads=across * along,
        sweeps=(sweep, sweep, replace(sweep, stored_bytes=size)),
        serial_cycles=2 * _EXCHANGE_CYCLES if along > 1 else 0,
        hbm_read_bytes=blocks * size,
        hbm_written_bytes=blocks * size,
    )
    return _reread(launch, size, sip)


def _in_registers(rows: int, loaded: int, stored: int, rows_of_warp: int) -> BlockLaunch:
    """Return a launch whose warps load whole rows, all at once."""
    of_block = _WARPS * rows_of_warp
    blocks = -(-rows // of_block)
    return BlockLaunch(
        name="softmax_of_warps",
        blocks=blocks,
        threads=_WARPS * 32,
        sweeps=(
            Sweep(
                loaded_bytes=of_block * loaded,
                under_way=of_block * loaded,
                stored_bytes=of_block * stored,
            ),
        ),
        hbm_read_bytes=rows * loaded,
        hbm_written_bytes=rows * stored,
    )


def _reread(launch: BlockLaunch, block_bytes: float, sip: SipSpec) -> BlockLaunch:
    """Return a launch whose sweeps but the first find what caches hold of its blocks.

    A PE's own cache holds those of its blocks, or the shared cache those of all.
    """
    of_pe = min(launch.resident(sip), launch.blocks) * block_bytes * _WITH_STORES
    kept = kept_share(min(of_pe * sip.num_pes, launch.blocks * block_bytes * _WITH_STORES), sip)
    if sip.cache is not None:
        near = (sip.pe.tcm_kib - sip.pe.register_kib) * 1024 * float(sip.cache.retained_share)
        kept = max(kept, min(2 - of_pe / near, 1.0))
    first, *others = launch.sweeps
    return replace(
        launch,
        sweeps=(first, *(replace(other, cached=kept) for other in others)),
        hbm_read_bytes=launch.hbm_read_bytes * (1 + len(others) * (1 - kept)),
    )
