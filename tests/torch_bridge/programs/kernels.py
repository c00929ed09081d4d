"""Triton kernels on tensors of simulated devices; each function asserts what they compute.

python kernels.py CASE [ARGUMENTS]
"""

import sys
import time

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

from kernbench.errors import BadPointerError, OutOfBoundsError


@triton.jit
def double(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)


@triton.jit
def gather(x, index, y, BLOCK: tl.constexpr):
    at = tl.load(index + tl.program_id(0))
    columns = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    while at >= 0:
        tl.store(y + row * BLOCK + columns, tl.load(x + at * BLOCK + columns))
        at -= 1000


class At:
    def __init__(self, tensor, offset):
        self.dtype = tensor.dtype
        self.at = tensor.data_ptr() + offset * tensor.element_size()

    def data_ptr(self):
        return self.at


class WithBase(At):
    def __init__(self, tensor, offset):
        super().__init__(tensor, offset)
        self.base = tensor


@triton.jit
def double_each(table, n, BLOCK: tl.constexpr):
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def a_kernel_takes_its_modeled_time_in_the_order_of_its_stream() -> None:
    x = torch.ones(1 << 16, device="cuda")
    y = torch.empty_like(x)
    x.add_(1)
    double[(1 << 6,)](x, y, x.numel(), BLOCK=1 << 10)
    x.add_(1)
    assert y.tolist() == [4] * (1 << 16)
    assert x[0].item() == 3


def a_kernel_that_decides_by_data_sees_what_came_before() -> None:
    x = torch.arange(32.0, device="cuda").view(8, 4)
    index = torch.tensor([6, 1, 7], device="cuda")
    y = torch.zeros(3, 4, device="cuda")
    index.sub_(1)
    gather[(3,)](x, index, y, BLOCK=4)
    index.zero_()
    assert torch.equal(y, x[[5, 0, 6]])


def views_autotuning_and_the_active_device_work() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    x = torch.arange(8.0, device=device).view(4, 2)
    assert x.device == device == torch.device("cuda", 0)
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 32)], key=["count"])(double)
    y = torch.zeros(10, device="cuda")
    tuned[lambda meta: (triton.cdiv(4, meta["BLOCK"]),)](x[2:], y[3:], 4)
    assert y.tolist() == [0] * 3 + [8, 10, 12, 14] + [0] * 3
    assert isinstance(triton.testing.do_bench(lambda: double[(1,)](x, y, 8, BLOCK=16)), float)
    assert y.tolist() == [0] * 3 + [8, 10, 12, 14] + [0] * 3


def operations_and_graphs_are_benchmarked_without_a_trace() -> None:
    x = torch.ones(1 << 20, device="cuda")
    y = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, 2, out=y)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    torch.add(x, 1, out=y)
    events[1].record()
    torch.cuda.synchronize()
    taken_ms = events[0].elapsed_time(events[1])
    began_s = time.perf_counter()
    for tried in (lambda: torch.add(x, 1, out=y), graph.replay):
        assert 0 < triton.testing.do_bench(tried) <= taken_ms
    # Less than any of them would be launched in: only the program's own calls are counted.
    assert time.perf_counter() - began_s < 200e-6
    assert y[0].item() == 2


def triton_and_torch_name_the_same_kind_of_device() -> None:
    target = triton.runtime.driver.active.get_current_target()
    major, minor = torch.cuda.get_device_capability()
    assert getattr(torch, target.backend) is torch.cuda
    assert (target.arch, target.warp_size) == (10 * major + minor, 32)
    x = torch.ones(8, device=target.backend)
    y = torch.empty_like(x)
    double[(1,)](x, y, 8, BLOCK=8)
    assert y.tolist() == [2.0] * 8


def a_machine_that_is_cudas_says_so_to_pytorch_and_to_kernels() -> None:
    @triton.jit
    def ask(out):
        tl.store(out, 8 if tl.target_info.cuda_capability_geq(8) else 0)
        tl.store(out + 1, 9 if tl.target_info.cuda_capability_geq(9) else 0)

    target = triton.runtime.driver.active.get_current_target()
    major, minor = torch.cuda.get_device_capability()
    properties = torch.cuda.get_device_properties(0)
    assert (target.backend, target.arch) == ("cuda", 80) == ("cuda", 10 * major + minor)
    assert (properties.major, properties.minor) == (8, 0)
    assert properties.shared_memory_per_block_optin == 166_912
    out = torch.full((2,), 7, device="cuda", dtype=torch.int32)
    ask[(1,)](out)
    assert out.tolist() == [8, 0]


def a_gradient_that_autograd_makes_up_can_be_given_to_a_kernel() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x, 3 * x

        @staticmethod
        def backward(ctx, first, second):
            result = torch.full_like(first, 7.0)
            assert second.device == first.device
            double[(1,)](second.view(2, 4).T.contiguous(), result, 8, BLOCK=8)
            return result + 2 * first

    x = torch.ones(8, device="cuda", requires_grad=True)
    Twice.apply(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0] * 8


def arguments_that_a_kernel_cannot_have_are_refused() -> None:
    x, y = torch.ones(8, device="cuda"), torch.ones(9, device="cuda")
    with pytest.raises(BadPointerError, match=r'lies on cpu.*\.to\("cuda"\)'):
        double[(1,)](x.cpu(), y, 8, BLOCK=8)
    with pytest.raises(BadPointerError, match="lies on cuda:1, but"):
        double[(1,)](x, y.to("cuda:1"), 8, BLOCK=8)
    with pytest.raises(OutOfBoundsError, match="reads 4 bytes at x"):
        double[(1,)](x, y, 9, BLOCK=16)


def a_kernel_on_a_tensor_of_a_collective_under_way_is_refused() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    x = torch.ones(8, device="cuda")
    y = torch.empty_like(x)
    work = dist.all_reduce(x, async_op=True)
    double[(1,)](x, y, 8, BLOCK=8)
    work.wait()


def operations_of_the_program_are_its_kernels(of_devices: str, data: str) -> None:
    options = {"device_types": "cuda"} if of_devices == "cuda" else {}

    @torch.library.custom_op("kernbench_tests::doubled", mutates_args=(), **options)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        double[(4,)](x, y, x.numel(), BLOCK=64)
        return y

    doubled.register_autograd(lambda ctx, grad: doubled(grad.contiguous()))

    @torch.library.custom_op("kernbench_tests::double_into", mutates_args={"out"})
    def double_into(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(doubled(x) + 0)

    x = torch.arange(200.0, device="cuda", requires_grad=True)
    y = doubled(x)
    y.sum().backward()
    assert y.is_cuda
    assert y.device == x.grad.device
    out = torch.zeros(200, device="cuda")
    double_into(x.detach(), out)
    if data == "data":
        assert torch.equal(y, 2 * x)
        assert (x.grad == 2).all()
        assert torch.equal(out, y)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g), torch.no_grad():
            z = doubled(x) + 1
        with torch.no_grad():
            x.fill_(3)
        g.replay()
        assert (z == 7).all()


def an_object_with_an_address_points_there() -> None:
    for kind in (At, WithBase):
        x, y = torch.arange(4.0, device="cuda"), torch.zeros(2, device="cuda")
        double[(1,)](kind(x, 2), kind(y, 1), 1, BLOCK=2)
        assert y.tolist() == [0, 4], y
        double[(1,)](triton.reinterpret(x, tl.float32), kind(y[1:], 0), 1, BLOCK=2)
        assert y.tolist() == [0, 0], y
    double[(0,)](x, y, 2, BLOCK=2)
    assert y.tolist() == [0, 0]

    graph, z = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        double[(1,)](WithBase(x, 1), At(z, 2), 2, BLOCK=2)
    assert z.tolist() == [0] * 4
    x += 10
    graph.replay()
    assert z.tolist() == [0, 0, 22, 24]


def a_table_holds_addresses_of_live_tensors() -> None:
    xs = [torch.full((2,), float(i), device="cuda") for i in range(8)]
    whole = torch.arange(6.0, device="cuda")
    value = [*xs, whole[2:4]]
    table = torch.tensor([x.data_ptr() for x in value], device="cuda")
    double_each[(9,)](table, 2, BLOCK=2)
    assert [x.tolist() for x in xs] == [[2 * i] * 2 for i in range(8)]
    assert whole.tolist() == [0, 1, 4, 6, 4, 5]
    assert whole.untyped_storage().nbytes() == 24


def an_address_of_no_live_tensor_is_refused() -> None:
    y, elsewhere = torch.zeros(2, device="cuda"), torch.zeros(2, device="cuda:1")
    goes = "argument x of kernel double, a At, goes to"
    for words, x in (
        (rf"{goes} address 0x.* no live tensor", At(torch.zeros(2, device="cuda"), 0)),
        (rf"{goes} address 0x.* no live tensor", At(y, 1 << 30)),
        (rf"{goes} .* is it on the host", At(torch.zeros(2), 0)),
        (
            "argument x of kernel double lies on cuda:1, but the current device is cuda:0",
            At(elsewhere, 0),
        ),
    ):
        with pytest.raises(BadPointerError, match=words):
            double[(1,)](x, y, 2, BLOCK=2)
    gone = torch.tensor([torch.zeros(2, device="cuda").data_ptr()], device="cuda")
    for words, table in (
        (
            r"tt.load at .* \(program \(0, 0, 0\)\), which lies on cuda:1, but the kernel runs on",
            torch.tensor([elsewhere.data_ptr()], device="cuda"),
        ),
        ("belongs to no live tensor", gone),
    ):
        with pytest.raises(BadPointerError, match=words):
            double_each[(1,)](table, 2, BLOCK=2)


@triton.jit
def decode(codes, table, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(table + tl.load(codes + at)))


def a_lookup(entries: str) -> None:
    n = 1 << 20
    codes = torch.zeros(n, dtype=torch.int32, device="cuda")
    table, y = torch.zeros(int(entries), device="cuda"), torch.empty(n, device="cuda")
    decode[(n // 1024,)](codes, table, y, BLOCK=1024)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
