import triton
import triton.language as tl

C = {}


def case(f):
    C[f.__name__] = f
    return f


def case_with_block_pointers(f):
    # Triton 3.9 removed them.
    release = tuple(map(int, triton.__version__.split(".")[:2]))
    return case(f) if release < (3, 9) else f


@triton.jit
def mm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        kk = k + tl.arange(0, BK)
        x = tl.load(a + (m % M)[:, None] * K + kk[None, :], mask=kk[None, :] < K, other=0)
        y = tl.load(b + kk[:, None] * N + (n % N)[None, :], mask=kk[:, None] < K, other=0)
        acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@case
def matmul_wrap(t):
    mm[(3, 3)](t.randn(40, 50), t.randn(50, 40), t.empty(40, 40), 40, 40, 50, BM=16, BN=16, BK=16)


@triton.jit
def soft(x, y, n, B: tl.constexpr):
    r = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + r * n + o, mask=o < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + r * n + o, e / tl.sum(e, 0), mask=o < n)


@case
def softmax(t):
    soft[(5,)](t.randn(5, 50), t.empty(5, 50), 50, B=64)


@triton.jit
def softno(x, y, n, B: tl.constexpr):
    r = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + r * n + o, mask=o < n)
    v = tl.where(o < n, v, -float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + r * n + o, e / tl.sum(e, 0), mask=o < n)


@case
def softmax_where(t):
    softno[(5,)](t.randn(5, 50), t.empty(5, 50), 50, B=64)


@triton.jit
def at(x, s, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(s, tl.sum(tl.load(x + o)))


@case
def atomic_sum(t):
    at[(4,)](t.ones(256), t.zeros(1), B=64)


@triton.jit
def hist(x, h, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    b = tl.load(x + o, mask=m, other=0)
    tl.atomic_add(h + b, 1, mask=m)


@case
def hist_atomic(t):
    hist[(2,)](
        t.tensor([i % 7 for i in range(100)], dtype="i32"), t.zeros(8, dtype="i32"), 100, B=64
    )


@triton.jit
def lock(l, c, B: tl.constexpr):
    while tl.atomic_cas(l, 0, 1) == 1:
        pass
    v = tl.load(c)
    tl.store(c, v + 1)
    tl.debug_barrier()
    tl.atomic_xchg(l, 0)


@case
def spin_lock(t):
    lock[(4,)](t.zeros(1, dtype="i32"), t.zeros(1), B=1)


@triton.jit
def last(x, part, cnt, out, n, B: tl.constexpr, P: tl.constexpr):
    p = tl.program_id(0)
    o = p * B + tl.arange(0, B)
    tl.store(part + p, tl.sum(tl.load(x + o)))
    tl.debug_barrier()
    if tl.atomic_add(cnt, 1) == P - 1:
        tl.store(out, tl.sum(tl.load(part + tl.arange(0, P))))


@case
def last_block(t):
    last[(4,)](t.ones(256), t.empty(4), t.zeros(1, dtype="i32"), t.empty(1), 256, B=64, P=4)


@triton.jit
def inpl(x, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    tl.store(x + o, tl.load(x + o, mask=m) * 2, mask=m)


@case
def inplace(t):
    inpl[(2,)](t.ones(100), 100, B=64)


@triton.jit
def rev(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + n - 1 - o, tl.load(x + o, mask=o < n), mask=o < n)


@case
def reverse(t):
    rev[(1,)](t.randn(50), t.empty(50), 50, B=64)


@triton.jit
def lcg(x, n, B: tl.constexpr):
    o = tl.arange(0, B)
    h = o * 1103515245 + 12345
    h = h ^ (h >> 16)
    h = h * 1664525
    tl.store(x + o, (h & 0xFF), mask=o < n)


@case
def hash_overflow(t):
    lcg[(1,)](t.empty(50, dtype="i32"), 50, B=64)


@triton.jit
def ixhash(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    h = (o * 1103515245 + 12345) & 63
    tl.store(y + o, tl.load(x + h))


@case
def hash_index(t):
    ixhash[(1,)](t.randn(64), t.empty(64), 50, B=64)


@triton.jit
def rnd(y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.rand(42, o))


@case
def rand(t):
    rnd[(1,)](t.empty(64), B=64)


@triton.jit
def same(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), tl.zeros((B,), tl.float32), mask=(tl.program_id(0) == 0))


@case
def masked_by_pid(t):
    same[(3,)](t.empty(64), B=64)


@triton.jit
def bp(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    p = tl.make_block_ptr(x, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    q = tl.make_block_ptr(y, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    tl.store(q, tl.load(p, boundary_check=(0, 1)), boundary_check=(0, 1))


@case_with_block_pointers
def block_ptr(t):
    bp[(2,)](t.randn(30, 20), t.empty(30, 20), 30, 20, BM=16, BN=32)


@triton.jit
def bpz(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    p = tl.make_block_ptr(x, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    tl.store(
        y + tl.arange(0, BM), tl.sum(tl.load(p, boundary_check=(0, 1), padding_option="zero"), 1)
    )


@case_with_block_pointers
def block_ptr_zero(t):
    bpz[(1,)](t.randn(30, 20), t.empty(32), 30, 20, BM=32, BN=32)


@triton.jit
def desc(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    d = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    e = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN])
    i = tl.program_id(0) * BM
    e.store([i, 0], d.load([i, 0]))


@case
def descriptor(t):
    desc[(2,)](t.randn(30, 20), t.empty(30, 20), 30, 20, BM=16, BN=32)


@triton.jit
def two(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    w = tl.load(y + o, mask=o < n)
    tl.store(y + o, tl.where(v > w, v, w), mask=o < n)


@case
def where_max(t):
    two[(1,)](t.randn(50), t.randn(50), 50, B=64)


@triton.jit
def cum(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(y + o, tl.cumsum(v, 0), mask=o < n)


@case
def cumsum_fwd(t):
    cum[(1,)](t.randn(50), t.empty(50), 50, B=64)


@triton.jit
def ln(x, w, y, n, B: tl.constexpr):
    r = tl.program_id(0)
    o = tl.arange(0, B)
    m = o < n
    v = tl.load(x + r * n + o, mask=m, other=0)
    mu = tl.sum(v) / n
    d = tl.where(m, v - mu, 0.0)
    var = tl.sum(d * d) / n
    tl.store(y + r * n + o, d * tl.rsqrt(var + 1e-5) * tl.load(w + o, mask=m), mask=m)


@case
def layernorm(t):
    ln[(4,)](t.randn(4, 50), t.ones(50), t.empty(4, 50), 50, B=64)


@case
def stream_ok(t):
    a = t.randn(256, 256)
    s = t.ahbm.Stream()
    s.wait_stream(t.ahbm.current_stream())
    with t.ahbm.stream(s):
        c = a @ a
    t.ahbm.current_stream().wait_stream(s)
    (c + 1).tolist()


@case
def event_ok(t):
    a = t.randn(256, 256)
    s = t.ahbm.Stream()
    e = t.ahbm.Event()
    e.record()
    s.wait_event(e)
    with t.ahbm.stream(s):
        c = a @ a
    s.synchronize()
    a.fill_(0)
    c.tolist()


@triton.jit
def inftk(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=float("-inf"))
    s, i = tl.max(v, 0, return_indices=True)
    tl.store(y, i)


@case
def argmax_ok(t):
    inftk[(1,)](t.randn(50), t.empty(1, dtype="i32"), 50, B=64)


@triton.jit
def pers(x, y, n, B: tl.constexpr, P: tl.constexpr):
    for i in range(tl.program_id(0), n, P):
        o = i * B + tl.arange(0, B)
        tl.store(y + o, tl.load(x + o) + 1)


@case
def persistent(t):
    pers[(3,)](t.randn(640), t.empty(640), 10, B=64, P=3)


@triton.jit
def swz(x, y, B: tl.constexpr, G: tl.constexpr):
    p = tl.program_id(0)
    q = (p % G) * 4 + p // G
    o = q * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o))


@case
def swizzle(t):
    swz[(16,)](t.randn(1024), t.empty(1024), B=64, G=4)


@triton.jit
def transp(x, y, M, N, B: tl.constexpr):
    m = tl.arange(0, B)[:, None]
    n = tl.arange(0, B)[None, :]
    v = tl.load(x + m * N + n, mask=(m < M) & (n < N))
    tl.store(y + tl.trans(n * M + m), tl.trans(v), mask=tl.trans((m < M) & (n < N)))


@case
def transpose_oop(t):
    transp[(1,)](t.randn(10, 12), t.empty(12, 10), 10, 12, B=16)


@triton.jit
def i64(x, s, B: tl.constexpr):
    o = tl.arange(0, B)
    r = tl.program_id(0).to(tl.int64) * s
    tl.store(x + r % 64 + o, o * 1.0, mask=tl.program_id(0) == 0)


@case
def int64_big(t):
    i64[(3,)](t.empty(128), 2000000000, B=64)


@triton.jit
def emptyp(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    if tl.program_id(0) * B >= n:
        return
    tl.store(y + o, tl.load(x + o, mask=o < n), mask=o < n)


@case
def early_return(t):
    emptyp[(10,)](t.randn(100), t.empty(100), 100, B=64)


@triton.jit
def seg(x, ix, y, n, B: tl.constexpr):
    r = tl.program_id(0)
    a = tl.load(ix + r)
    b = tl.load(ix + r + 1)
    acc = 0.0
    for i in range(a, b, B):
        o = i + tl.arange(0, B)
        acc += tl.sum(tl.load(x + o, mask=o < b, other=0))
    tl.store(y + r, acc)


@case
def segments(t):
    seg[(3,)](t.ones(20), t.tensor([0, 3, 3, 20], dtype="i32"), t.empty(3), 20, B=8)


@triton.jit
def permk(ix, x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + tl.load(ix + o), tl.load(x + o))


@case
def perm_scatter(t):
    permk[(1,)](t.tensor(list(range(63, -1, -1)), dtype="i32"), t.randn(64), t.empty(64), B=64)


@triton.jit
def fold(x, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    for s in tl.static_range(3):
        v = v + tl.flip(v, 0)
    tl.store(x + o, v)


@case
def flip_ok(t):
    fold[(1,)](t.randn(64), B=64)


@case
def async_ok(t):
    def w(r):
        t.distributed.init_process_group()
        x = t.ones(64)
        h = t.distributed.all_reduce(x, async_op=True)
        y = t.ones(64) * 3
        h.wait()
        (x + y).tolist()

    t.multiprocessing.spawn(w, nprocs=2)


async_ok.ranks = 2
