"""Kernels written in Gluon, one per way to move data through shared memory."""

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

PLAIN = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])


@gluon.jit
def scale(x_ptr, out_ptr, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    """A row of blocks, by registers."""
    places = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    x = gl.load(x_ptr + places, mask=places < n)
    gl.store(out_ptr + places, 2 * x, mask=places < n)


@gluon.jit
def turn(x_ptr, out_ptr, rows, cols, R: gl.constexpr, C: gl.constexpr):
    """Transpose a tile: read along one axis, change the layout, write along the other."""
    by_row: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    by_col: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    r = gl.program_id(0) * R + gl.arange(0, R, gl.SliceLayout(1, by_row))
    c = gl.program_id(1) * C + gl.arange(0, C, gl.SliceLayout(0, by_row))
    inside = (r < rows)[:, None] & (c < cols)[None, :]
    tile = gl.load(x_ptr + r[:, None] * cols + c[None, :], mask=inside)
    tile = gl.convert_layout(tile, by_col)
    r = gl.program_id(0) * R + gl.arange(0, R, gl.SliceLayout(1, by_col))
    c = gl.program_id(1) * C + gl.arange(0, C, gl.SliceLayout(0, by_col))
    inside = (r < rows)[:, None] & (c < cols)[None, :]
    gl.store(out_ptr + c[None, :] * rows + r[:, None], tile, mask=inside)


@gluon.jit
def swap(x_ptr, y_ptr, BLOCK: gl.constexpr):
    """Exchange two tensors: each is copied before the other is written."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[0])
    places = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    x = gl.allocate_shared_memory(gl.float32, [BLOCK], shared)
    y = gl.allocate_shared_memory(gl.float32, [BLOCK], shared)
    async_copy.async_load(x, x_ptr + places)
    async_copy.async_load(y, y_ptr + places)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(x_ptr + places, y.load(layout))
    gl.store(y_ptr + places, x.load(layout))


@gluon.jit
def _fetch(index, a, b, a_ptrs, b_ptrs, inside, cols, c, C: gl.constexpr, BUFFERS: gl.constexpr):
    at = index * C + c
    mask = inside & (at < cols)[None, :]
    async_copy.async_load(a.index(index % BUFFERS), a_ptrs + at[None, :], mask)
    async_copy.async_load(b.index(index % BUFFERS), b_ptrs + at[None, :], mask)
    async_copy.commit_group()
    return index + 1


@gluon.jit
def _sum(
    index, a, b, out_ptrs, inside, cols, c,
    C: gl.constexpr, BUFFERS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    total = a.index(index % BUFFERS).load(layout) + b.index(index % BUFFERS).load(layout)
    at = index * C + c
    gl.store(out_ptrs + at[None, :], total, mask=inside & (at < cols)[None, :])
    return index + 1


@gluon.jit
def add_ahead(
    a_ptr, b_ptr, out_ptr, rows, cols, R: gl.constexpr, C: gl.constexpr, BUFFERS: gl.constexpr
):  # fmt: skip
    """Add two matrices, with async copies that run ahead by all buffers but one."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])
    r = gl.program_id(0) * R + gl.arange(0, R, gl.SliceLayout(1, layout))
    c = gl.arange(0, C, gl.SliceLayout(0, layout))
    inside = (r < rows)[:, None]
    a_ptrs, b_ptrs, out_ptrs = (
        a_ptr + cols * r[:, None],
        b_ptr + cols * r[:, None],
        out_ptr + cols * r[:, None],
    )
    a = gl.allocate_shared_memory(gl.float32, [BUFFERS, R, C], shared)
    b = gl.allocate_shared_memory(gl.float32, [BUFFERS, R, C], shared)
    copied = 0
    read = 0
    for _ in gl.static_range(BUFFERS - 1):
        copied = _fetch(copied, a, b, a_ptrs, b_ptrs, inside, cols, c, C, BUFFERS)
    for _ in range(gl.cdiv(cols, C) - (BUFFERS - 1)):
        copied = _fetch(copied, a, b, a_ptrs, b_ptrs, inside, cols, c, C, BUFFERS)
        async_copy.wait_group(BUFFERS - 1)
        read = _sum(read, a, b, out_ptrs, inside, cols, c, C, BUFFERS, layout)
    for i in gl.static_range(BUFFERS - 1):
        async_copy.wait_group(BUFFERS - 2 - i)
        read = _sum(read, a, b, out_ptrs, inside, cols, c, C, BUFFERS, layout)


@gluon.jit
def _begin(index, a_desc, b_desc, a, b, bars, row, C: gl.constexpr, BUFFERS: gl.constexpr):
    bar = bars.index(index % BUFFERS)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    tma.async_load(a_desc, [row, index * C], bar, a.index(index % BUFFERS))
    tma.async_load(b_desc, [row, index * C], bar, b.index(index % BUFFERS))
    return index + 1


@gluon.jit
def _end(
    index, out_desc, a, b, out, bars, row,
    C: gl.constexpr, BUFFERS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    mbarrier.wait(bars.index(index % BUFFERS), index // BUFFERS & 1)
    total = a.index(index % BUFFERS).load(layout) + b.index(index % BUFFERS).load(layout)
    tma.store_wait(pendings=0)
    out.store(total)
    fence_async_shared()
    tma.async_store(out_desc, [row, index * C], out)
    return index + 1


@gluon.jit
def add_tma(
    a_desc, b_desc, out_desc, cols, R: gl.constexpr, C: gl.constexpr, BUFFERS: gl.constexpr
):
    """The same by descriptors, with a barrier per buffer."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    row = gl.program_id(0) * R
    a = gl.allocate_shared_memory(gl.float32, [BUFFERS, R, C], a_desc.layout)
    b = gl.allocate_shared_memory(gl.float32, [BUFFERS, R, C], b_desc.layout)
    out = gl.allocate_shared_memory(gl.float32, [R, C], out_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BUFFERS):
        mbarrier.init(bars.index(i), count=1)
    begun = 0
    ended = 0
    for _ in gl.static_range(BUFFERS - 1):
        begun = _begin(begun, a_desc, b_desc, a, b, bars, row, C, BUFFERS)
    for _ in range(gl.cdiv(cols, C) - (BUFFERS - 1)):
        begun = _begin(begun, a_desc, b_desc, a, b, bars, row, C, BUFFERS)
        ended = _end(ended, out_desc, a, b, out, bars, row, C, BUFFERS, layout)
    for _ in gl.static_range(BUFFERS - 1):
        ended = _end(ended, out_desc, a, b, out, bars, row, C, BUFFERS, layout)
    for i in gl.static_range(BUFFERS):
        mbarrier.invalidate(bars.index(i))
    tma.store_wait(pendings=0)


@gluon.constexpr_function
def wgmma_layout(dtype, columns, warps):
    return gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[warps, 1],
        instr_shape=[16, min(columns, 256), 256 // dtype.primitive_bitwidth],
    )


@gluon.jit
def multiply(a_desc, b_desc, out_desc, TURNED: gl.constexpr, num_warps: gl.constexpr):
    """A product by warp groups, one buffer for each operand; ``TURNED``: b is [N, K]."""
    M: gl.constexpr = out_desc.block_type.shape[0]
    N: gl.constexpr = out_desc.block_type.shape[1]
    K: gl.constexpr = a_desc.block_type.shape[1]
    dtype: gl.constexpr = a_desc.dtype
    row, col = gl.program_id(0) * M, gl.program_id(1) * N
    a = gl.allocate_shared_memory(dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(dtype, b_desc.block_type.shape, b_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    acc = gl.zeros((M, N), dtype=gl.float32, layout=wgmma_layout(dtype, N, num_warps))
    phase = 0
    for k in range(0, a_desc.shape[1], K):
        mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_load(a_desc, [row, k], bar, a)
        if TURNED:
            tma.async_load(b_desc, [col, k], bar, b)
            factor = b.permute((1, 0))
        else:
            tma.async_load(b_desc, [k, col], bar, b)
            factor = b
        mbarrier.wait(bar, phase)
        phase ^= 1
        acc = warpgroup_mma(a, factor, acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    mbarrier.invalidate(bar)
    out = gl.allocate_shared_memory(dtype, out_desc.block_type.shape, out_desc.layout)
    out.store(acc.to(dtype))
    fence_async_shared()
    tma.async_store(out_desc, [row, col], out)
    tma.store_wait(pendings=0)


@gluon.jit
def _load_factors(
    made, a_desc, b_desc, row, col, k, bars, a, b, BUFFERS: gl.constexpr, wanted=True
):  # fmt: skip
    bar = bars.index(made % BUFFERS)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes, wanted)
    tma.async_load(a_desc, [row, k], bar, a.index(made % BUFFERS), wanted)
    tma.async_load(b_desc, [k, col], bar, b.index(made % BUFFERS), wanted)
    return made + 1


@gluon.jit
def multiply_ahead(a_desc, b_desc, out_desc, BUFFERS: gl.constexpr, num_warps: gl.constexpr):
    """A product whose loads run ahead by all buffers but two, one of which is multiplied."""
    M: gl.constexpr = out_desc.block_type.shape[0]
    N: gl.constexpr = out_desc.block_type.shape[1]
    K: gl.constexpr = a_desc.block_type.shape[1]
    dtype: gl.constexpr = a_desc.dtype
    row, col = gl.program_id(0) * M, gl.program_id(1) * N
    a = gl.allocate_shared_memory(dtype, [BUFFERS, M, K], a_desc.layout)
    b = gl.allocate_shared_memory(dtype, [BUFFERS, K, N], b_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BUFFERS):
        mbarrier.init(bars.index(i), count=1)
    factors = 0
    used = 0
    adds = gl.to_tensor(False)
    zeros = gl.zeros((M, N), dtype=gl.float32, layout=wgmma_layout(dtype, N, num_warps))
    acc = warpgroup_mma_init(zeros)
    for k in gl.static_range(0, K * (BUFFERS - 2), K):
        factors = _load_factors(factors, a_desc, b_desc, row, col, k, bars, a, b, BUFFERS)
    for k in range(K * (BUFFERS - 2), a_desc.shape[1], K):
        factors = _load_factors(factors, a_desc, b_desc, row, col, k, bars, a, b, BUFFERS)
        mbarrier.wait(bars.index(used % BUFFERS), used // BUFFERS & 1)
        acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=0, deps=(acc,)))
        acc = warpgroup_mma(
            a.index(used % BUFFERS), b.index(used % BUFFERS), acc, is_async=True, use_acc=adds
        )
        adds = gl.to_tensor(True)
        used += 1
    for _ in gl.static_range(BUFFERS - 2):
        mbarrier.wait(bars.index(used % BUFFERS), used // BUFFERS & 1)
        acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=0, deps=(acc,)))
        acc = warpgroup_mma(a.index(used % BUFFERS), b.index(used % BUFFERS), acc, is_async=True)
        used += 1
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    out = gl.allocate_shared_memory(dtype, out_desc.block_type.shape, out_desc.layout)
    out.store(acc.to(dtype))
    fence_async_shared()
    tma.async_store(out_desc, [row, col], out)
    tma.store_wait(pendings=0)


@triton.autotune([triton.Config({"BLOCK": block}, num_warps=4) for block in (128, 1024)], key=["n"])
@gluon.jit
def scale_tuned(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    """The first kernel, of which the tuner chooses the block."""
    scale(x_ptr, out_ptr, n, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _double(x_ptr):
    gl.store(x_ptr, 2 * gl.load(x_ptr))


@gluon.jit
def side_by_side(x_ptr, y_ptr):
    """Two partitions of warps, which kernbench does not run."""
    gl.warp_specialize([(_double, (x_ptr,)), (_double, (y_ptr,))], [4], [24])


@gluon.jit
def by_rows(x_ptr, out_ptr, ROWS: gl.constexpr, C: gl.constexpr):
    """Parts of a buffer that overlap others."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])
    r = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    c = gl.arange(0, C, gl.SliceLayout(0, layout))
    tile = gl.allocate_shared_memory(gl.float32, [ROWS, C], shared)
    tile.store(gl.load(x_ptr + r[:, None] * C + c[None, :]))
    half = tile.slice(0, ROWS // 2, dim=0).load(layout)
    r = gl.arange(0, ROWS // 2, gl.SliceLayout(1, layout))
    gl.store(out_ptr + r[:, None] * C + c[None, :], half)


@gluon.jit
def until(x_ptr, out_ptr, counts_ptr):
    """A loop whose end is data."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lanes = gl.arange(0, 128, layout)
    total = gl.zeros([128], gl.float32, layout)
    for i in range(gl.load(counts_ptr + gl.program_id(0))):
        total += gl.load(x_ptr + i * 128 + lanes)
    gl.store(out_ptr + gl.program_id(0) * 128 + lanes, total)


@gluon.jit
def multiply_persistent(
    a_desc, b_desc, out_desc, BUFFERS: gl.constexpr, num_warps: gl.constexpr
):  # fmt: skip
    """Every program makes several tiles; loads run ahead within a tile."""
    M: gl.constexpr = out_desc.block_type.shape[0]
    N: gl.constexpr = out_desc.block_type.shape[1]
    K: gl.constexpr = a_desc.block_type.shape[1]
    dtype: gl.constexpr = a_desc.dtype
    bars = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BUFFERS):
        mbarrier.init(bars.index(i), count=1)
    factors = 0
    used = 0
    rows = gl.cdiv(out_desc.shape[0], M)
    tiles = rows * gl.cdiv(out_desc.shape[1], N)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, col = (tile % rows) * M, (tile // rows) * N
        a = gl.allocate_shared_memory(dtype, [BUFFERS, M, K], a_desc.layout)
        b = gl.allocate_shared_memory(dtype, [BUFFERS, K, N], b_desc.layout)
        acc = warpgroup_mma_init(
            gl.zeros((M, N), dtype=gl.float32, layout=wgmma_layout(dtype, N, num_warps))
        )
        for k in gl.static_range(0, K * (BUFFERS - 1), K):
            factors = _load_factors(factors, a_desc, b_desc, row, col, k, bars, a, b, BUFFERS)
        for k in range(K * (BUFFERS - 1), a_desc.shape[1], K):
            factors = _load_factors(factors, a_desc, b_desc, row, col, k, bars, a, b, BUFFERS)
            mbarrier.wait(bars.index(used % BUFFERS), used // BUFFERS & 1)
            acc = warpgroup_mma(
                a.index(used % BUFFERS), b.index(used % BUFFERS), acc, is_async=True
            )
            acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=0, deps=(acc,)))
            used += 1
        for _ in gl.static_range(BUFFERS - 1):
            mbarrier.wait(bars.index(used % BUFFERS), used // BUFFERS & 1)
            acc = warpgroup_mma(
                a.index(used % BUFFERS), b.index(used % BUFFERS), acc, is_async=True
            )
            acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=0, deps=(acc,)))
            used += 1
        out = gl.allocate_shared_memory(dtype, out_desc.block_type.shape, out_desc.layout)
        out.store(warpgroup_mma_wait(num_outstanding=0, deps=(acc,)).to(dtype))
        fence_async_shared()
        tma.async_store(out_desc, [row, col], out)
        tma.store_wait(pendings=0)


@gluon.jit
def until_shared(x_ptr, out_ptr, counts_ptr):
    """The same through shared memory, which kernbench does not run."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[0])
    lanes = gl.arange(0, 128, layout)
    tile = gl.allocate_shared_memory(gl.float32, [128], shared)
    total = gl.zeros([128], gl.float32, layout)
    for i in range(gl.load(counts_ptr + gl.program_id(0))):
        async_copy.async_load(tile, x_ptr + i * 128 + lanes)
        async_copy.wait_group(0)
        total += tile.load(layout)
    gl.store(out_ptr + gl.program_id(0) * 128 + lanes, total)


@gluon.jit
def unwritten(out_ptr):
    """A buffer that is read first."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[0])
    tile = gl.allocate_shared_memory(gl.float32, [128], shared)
    gl.store(out_ptr + gl.arange(0, 128, layout), tile.load(layout))
