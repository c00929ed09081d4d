"""The Triton kernels whose TTIR text lies in ``ttir/``; ``ttir/README.md`` says how it was made."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    G: tl.constexpr,
):
    pid = tl.program_id(0)
    nm = tl.cdiv(M, BM)
    nn = tl.cdiv(N, BN)
    per = G * nn
    gid = pid // per
    first = gid * G
    gs = min(nm - first, G)
    pm = first + pid % per % gs
    pn = pid % per // gs
    offs_am = (pm * BM + tl.arange(0, BM)) % M
    offs_bn = (pn * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    ap = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    bp = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(ap, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(bp, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        ap += BK * stride_ak
        bp += BK * stride_bk
    c = acc.to(tl.float16)
    ocm = pm * BM + tl.arange(0, BM)
    ocn = pn * BN + tl.arange(0, BN)
    cp = c_ptr + stride_cm * ocm[:, None] + stride_cn * ocn[None, :]
    tl.store(cp, c, mask=(ocm[:, None] < M) & (ocn[None, :] < N))


@triton.jit
def softmax(o, i, istr, ostr, nr, nc, B: tl.constexpr, num_stages: tl.constexpr):
    rs = tl.program_id(0)
    st = tl.num_programs(0)
    for r in tl.range(rs, nr, st, num_stages=num_stages):
        off = tl.arange(0, B)
        m = off < nc
        x = tl.load(i + r * istr + off, mask=m, other=-float("inf"))
        x = x - tl.max(x, axis=0)
        e = tl.exp(x)
        tl.store(o + r * ostr + off, e / tl.sum(e, axis=0), mask=m)


@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    m = offs < n
    tl.store(o + offs, tl.load(x + offs, mask=m) + tl.load(y + offs, mask=m), mask=m)


@triton.jit
def desc(x, y, o, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(y, [K, N], [N, 1], [BK, BN])
    c = tl.make_tensor_descriptor(o, [M, N], [N, 1], [BM, BN])
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([pm * BM, k]), b.load([k, pn * BN]), acc)
    c.store([pm * BM, pn * BN], acc.to(tl.float16))


@triton.jit
def blockptr(x, o, M, N, BM: tl.constexpr, BN: tl.constexpr):
    p = tl.make_block_ptr(x, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    q = tl.make_block_ptr(o, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    for _ in range(tl.cdiv(N, BN)):
        v = tl.load(p, boundary_check=(0, 1), padding_option="zero")
        tl.store(q, v * 2, boundary_check=(0, 1))
        p = tl.advance(p, (0, BN))
        q = tl.advance(q, (0, BN))


@triton.jit
def early(x, n, B: tl.constexpr):
    pid = tl.program_id(0)
    if pid >= n:
        return
    if pid == 1:
        tl.store(x + pid * B + tl.arange(0, B), 1.0)
        return
    tl.store(x + pid * B + tl.arange(0, B), 2.0)


@triton.jit
def wh(x, n):
    i = 0
    s = 0.0
    while i < n:
        s += tl.load(x + i)
        i += 1
        if i == 3:
            s += 1.0
        else:
            s = s * 2
    tl.store(x, s)


@triton.jit(noinline=True)
def helper(a, b):
    return (a * b, a + b)


@triton.jit
def callk(x, n):
    a, b = helper(n, tl.program_id(0))
    tl.store(x + a, b.to(tl.float32))


@triton.jit
def gather(idx, x, o, n, D: tl.constexpr, B: tl.constexpr):
    p = tl.program_id(0)
    i = tl.load(idx + p)
    offs = tl.arange(0, D)
    v = tl.load(x + i.to(tl.int64) * D + offs)
    j = tl.load(idx + tl.arange(0, B), mask=tl.arange(0, B) < n, other=0)
    w = tl.load(x + j[:, None] * D + offs[None, :], mask=j[:, None] > 0)
    tl.store(o + p * D + offs, v + tl.sum(w, axis=0))


@triton.jit
def misc(x, o, n, f, B: tl.constexpr):
    a = tl.arange(0, B)
    y = tl.load(x + a)
    m, i = tl.max(y, axis=0, return_indices=True)
    z = tl.where(a[:, None] ^ a[None, :] < n, y[:, None] * f, 0.0)
    r = tl.reshape(z, (B * B,))
    c = (
        tl.cumsum(y, 0)
        if False
        else tl.sigmoid(y) + tl.sqrt(y) + tl.erf(y) + tl.math.pow(y, 2.0)
        if False
        else tl.sigmoid(y) + tl.sqrt(y) + tl.erf(y)
    )
    tl.store(o + tl.arange(0, B * B), r)
    tl.store(
        o + a, c + m + i.to(tl.float32) + tl.clamp(y, 0.0, 1.0) + tl.fma(y, y, y) + tl.div_rn(y, f)
    )
    tl.store(o + a, tl.trans(z).sum(1) + tl.min(z, axis=1) + tl.softmax(y))
    tl.device_assert(n > 0)
    tl.debug_barrier()
    tl.store(o + a * 2, y.to(tl.float8e5).to(tl.float32) + tl.abs(y) + tl.floor(y) + tl.cdiv(a, 3))


@triton.jit
def causal(x, o, n, B: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((B,), tl.float32)
    for j in range(pid + 1):
        acc += tl.load(x + j * B + tl.arange(0, B))
    if pid % 2 == 0:
        acc = acc * 2
    tl.store(o + pid * B + tl.arange(0, B), acc)


@triton.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    start = tl.program_id(0)
    np_ = tl.num_programs(0)
    nm = tl.cdiv(M, BM)
    nn = tl.cdiv(N, BN)
    kt = tl.cdiv(K, BK)
    for t in tl.range(start, nm * nn, np_, flatten=True):
        pm = t // nn
        pn = t % nn
        om = pm * BM + tl.arange(0, BM)
        on = pn * BN + tl.arange(0, BN)
        om = tl.where(om < M, om, 0)
        on = tl.where(on < N, on, 0)
        om = tl.max_contiguous(tl.multiple_of(om, BM), BM)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(kt):
            ok = k * BK + tl.arange(0, BK)
            a = tl.load(
                a_ptr + om[:, None] * K + ok[None, :], mask=ok[None, :] < K - k * 0, other=0.0
            )
            b = tl.load(b_ptr + ok[:, None] * N + on[None, :], mask=ok[:, None] < K, other=0.0)
            acc = tl.dot(a, b, acc)
        cm = pm * BM + tl.arange(0, BM)
        cn = pn * BN + tl.arange(0, BN)
        tl.store(
            c_ptr + cm[:, None] * N + cn[None, :],
            acc.to(tl.float16),
            mask=(cm[:, None] < M) & (cn[None, :] < N),
        )


@triton.jit
def joins(x, o, B: tl.constexpr):
    a = tl.load(x + tl.arange(0, B))
    b = tl.load(x + B + tl.arange(0, B))
    j = tl.join(a, b)
    p, q = tl.split(j)
    tl.store(o + tl.arange(0, 2 * B), tl.cat(p, q, can_reorder=True))
    tl.store(o + tl.arange(0, 2 * B), tl.interleave(a, b))
    s = tl.cumsum(a, 0)
    tl.store(o + tl.arange(0, B), s)


@triton.jit
def atom(x, n):
    tl.atomic_add(x + tl.program_id(0) % n, 1.0)


@triton.jit
def attn(
    q, k, v, o, sm, N, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    pm = tl.program_id(0)
    hz = tl.program_id(1)
    base = hz * N * D
    om = pm * BM + tl.arange(0, BM)
    od = tl.arange(0, D)
    on = tl.arange(0, BN)
    qq = tl.load(q + base + om[:, None] * D + od[None, :], mask=om[:, None] < N, other=0.0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    den = tl.zeros((BM,), tl.float32) + 0.0
    acc = tl.zeros((BM, D), tl.float32)
    hi = tl.minimum((pm + 1) * BM, N) if CAUSAL else N
    for s in range(0, hi, BN):
        s = tl.multiple_of(s, BN)
        kk = tl.load(
            k + base + (s + on)[None, :] * D + od[:, None], mask=(s + on)[None, :] < N, other=0.0
        )
        x = tl.dot(qq, kk) * sm
        ok = (s + on)[None, :] < N
        if CAUSAL:
            ok = ok & (om[:, None] >= (s + on)[None, :])
        x = tl.where(ok, x, -1000000.0)
        mn = tl.maximum(m, tl.max(x, 1))
        p = tl.exp(x - mn[:, None])
        a = tl.exp(m - mn)
        den = den * a + tl.sum(p, 1)
        vv = tl.load(
            v + base + (s + on)[:, None] * D + od[None, :], mask=(s + on)[:, None] < N, other=0.0
        )
        acc = tl.dot(p.to(tl.float32), vv, acc * a[:, None])
        m = mn
    tl.store(o + base + om[:, None] * D + od[None, :], acc / den[:, None], mask=om[:, None] < N)


@triton.jit
def layernorm(x, y, w, b, mean, rstd, stride, N, eps, B: tl.constexpr):
    row = tl.program_id(0)
    y += row * stride
    x += row * stride
    _m = tl.zeros([B], tl.float32)
    for off in range(0, N, B):
        c = off + tl.arange(0, B)
        _m += tl.load(x + c, mask=c < N, other=0.0).to(tl.float32)
    mu = tl.sum(_m, axis=0) / N
    _v = tl.zeros([B], tl.float32)
    for off in range(0, N, B):
        c = off + tl.arange(0, B)
        t = tl.load(x + c, mask=c < N, other=0.0).to(tl.float32)
        t = tl.where(c < N, t - mu, 0.0)
        _v += t * t
    rs = 1 / tl.sqrt(tl.sum(_v, axis=0) / N + eps)
    tl.store(mean + row, mu)
    tl.store(rstd + row, rs)
    for off in range(0, N, B):
        c = off + tl.arange(0, B)
        mk = c < N
        tl.store(
            y + c,
            (tl.load(x + c, mask=mk, other=0.0) - mu) * rs * tl.load(w + c, mask=mk)
            + tl.load(b + c, mask=mk),
            mask=mk,
        )


@triton.jit
def fib(o, n, T: tl.constexpr):
    a = tl.program_id(0) * 0
    b = a + 1
    for i in range(n):
        tl.store(o + i, a)
        c = a + b
        a = b
        b = c


@triton.jit
def chase(nxt, o, n):
    p = tl.program_id(0)
    for i in range(n):
        tl.store(o + tl.program_id(0) * n + i, p)
        p = tl.load(nxt + p)


@triton.jit
def walk_ptr(step, x, o, n, B: tl.constexpr):
    ptr = x + tl.arange(0, B)
    s = tl.load(step)
    acc = tl.zeros((B,), tl.float32)
    for _ in range(n):
        acc += tl.load(ptr)
        ptr += s
    tl.store(o + tl.arange(0, B), acc)


@triton.jit
def tri(o, n):
    for i in range(n):
        for j in range(i):
            tl.store(o + i * n + j, 1.0)


@triton.jit
def condloop(o, n, m):
    for i in range(n):
        if i % 3 == 0:
            tl.store(o + i, 1.0)
        else:
            tl.store(o + i, 2.0)
    k = 0
    for i in range(n):
        if i >= m:
            k = i * 2
        else:
            k = i + 100
        tl.store(o + n + i, k.to(tl.float32))  # type: ignore[attr-defined]  # in Triton


@triton.jit
def swizzle(x, o, n, B: tl.constexpr):
    a = tl.arange(0, B)
    b = tl.arange(0, B)
    off = a[:, None] * B + (b[None, :] ^ a[:, None])
    v = tl.load(x + off, mask=a[:, None] + b[None, :] < n, other=-1.0)
    tl.store(o + a[:, None] * B + b[None, :], v)


@triton.jit
def conv(x, w, o, H, W, OH, OW, B: tl.constexpr):
    p = tl.program_id(0) * B + tl.arange(0, B)
    oh = p // OW
    ow = p % OW
    acc = tl.zeros((B,), tl.float32)
    for t in range(9):
        dh = t // 3
        dw = t % 3
        ih = oh + dh - 1
        iw = ow + dw - 1
        ok = (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W) & (p < OH * OW)
        acc += tl.load(x + ih * W + iw, mask=ok, other=0.0) * tl.load(w + t)
    tl.store(o + p, acc, mask=p < OH * OW)


@triton.jit
def splitk(a, b, o, n, S: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    k = tl.program_id(1)
    acc = tl.zeros((B,), tl.float32)
    lo = k * n // S
    hi = (k + 1) * n // S
    for i in range(lo, hi):
        acc += tl.load(a + i * B + tl.arange(0, B))
    if k == 0:
        tl.store(o + tl.arange(0, B) + pid * S * B, acc)
    elif k == 1:
        tl.store(o + B + tl.arange(0, B) + pid * S * B, acc * 10)
    else:
        tl.store(o + k * B + tl.arange(0, B) + pid * S * B, acc * 100)


@triton.jit
def rope(x, c, s, o, D: tl.constexpr, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    half = i % (D // 2)
    rot = tl.where(i % D < D // 2, i + D // 2, i - D // 2)
    sg = tl.where(i % D < D // 2, -1.0, 1.0)
    v = tl.load(x + r * B + i)
    u = tl.load(x + r * B + rot)
    tl.store(o + r * B + i, v * tl.load(c + half) + u * sg * tl.load(s + half))


@triton.jit
def flat(x, o, n0, n1, s0, s1, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B).to(tl.int64)
    a = i // n1
    b = i % n1
    tl.store(o + i, tl.load(x + a * s0 + b * s1, mask=i < n0 * n1), mask=i < n0 * n1)


@triton.jit
def overflow(x, o, big, B: tl.constexpr):
    i = tl.program_id(0) * big
    tl.store(o + tl.arange(0, B) + tl.program_id(0) * B, (i + tl.arange(0, B)).to(tl.float32))


@triton.jit
def _comb(a, b):
    return a * 0.5 + b * 0.5 + tl.maximum(a, b)


@triton.jit
def custom(x, o, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(o, tl.reduce(v, 0, _comb))
    tl.store(o + 1, tl.xor_sum(tl.arange(0, B)).to(tl.float32))
    tl.store(o + 2, tl.argmin(v, 0).to(tl.float32))
    tl.store(o + 3, tl.max(tl.arange(0, B) * 3 % 7, 0).to(tl.float32))


@triton.jit
def nested(o, n, m):
    p = o
    for i in range(n):
        q = p
        for j in range(m):
            tl.store(q, (i * m + j).to(tl.float32))
            q += 1
        p += m


@triton.jit
def flatpersist(x, o, T, KT, B: tl.constexpr):
    start = tl.program_id(0)
    ki = -1
    tile = start - tl.num_programs(0)
    acc = tl.zeros((B,), tl.float32)
    num = tl.cdiv(T - start, tl.num_programs(0))
    for _ in range(num * KT):
        ki = tl.where(ki == KT - 1, 0, ki + 1)
        if ki == 0:
            tile += tl.num_programs(0)
            acc = tl.zeros((B,), tl.float32)
        acc += tl.load(x + (tile * KT + ki) * B + tl.arange(0, B))
        if ki == KT - 1:
            tl.store(o + tile * B + tl.arange(0, B), acc)
