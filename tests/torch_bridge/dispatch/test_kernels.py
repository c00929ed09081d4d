"""Triton kernels on tensors of simulated devices, inside PyTorch programs."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import BadPointerError, OutOfBoundsError, UsageError  # noqa: E402
from kernbench.runtime_api import RuntimeContext, SpawnException  # noqa: E402
from tests.torch_bridge.running import results, simulated  # noqa: E402

START = """
import os, torch, torch.distributed as dist, triton, triton.language as tl

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
"""


def run(folder: Path, source: str, **options: object) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text(START + source)
    return simulated(path, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.adr("0067-D1")
def test_a_llama_of_triton_kernels_learns_what_its_twin_of_operations_does(tmp_path: Path) -> None:
    context = simulated("triton_llama.py", tmp_path, nprocs=2)
    found = results(tmp_path)
    assert len(found) == 2
    for each in found:
        kernels, plain = each["Kernels"], each["Plain"]
        assert kernels.keys() == plain.keys()
        for name, expected in plain.items():
            torch.testing.assert_close(kernels[name], expected, rtol=1e-4, atol=1e-6, msg=name)
        assert all(value.abs().max() > 0 for value in plain.values())
    launches: dict[str, int] = {}
    for instance in context.op_log.instances:
        name = instance.template.name
        launches[name] = launches.get(name, 0) + len(instance.ranks)
    norms = 2 * (2 * 2 + 1)
    assert launches["rms_norm_forward"] == launches["rms_norm_backward"] == norms
    assert launches["rope_kernel"] == 2 * (2 * 2 * 2)
    assert launches["swiglu_forward"] == launches["swiglu_backward"] == 2 * 2
    assert launches["cross_entropy_kernel"] == 2


@pytest.mark.adr("0067-D1")
def test_a_kernel_takes_its_modeled_time_in_the_order_of_its_stream(tmp_path: Path) -> None:
    source = """
x = torch.ones(1 << 16, device="cuda")
y = torch.empty_like(x)
x.add_(1)
double[(1 << 6,)](x, y, x.numel(), BLOCK=1 << 10)
x.add_(1)
assert y.tolist() == [4] * (1 << 16) and x[0].item() == 3
"""
    context = run(tmp_path, source)
    names = ("aten.add_", "double")
    before, kernel, after = (
        each for each in context.op_log.instances if each.template.name in names
    )
    assert kernel.template.name == "double"
    assert before.ends_ps[0] <= kernel.starts_ps[0]
    assert kernel.ends_ps[0] <= after.starts_ps[0]
    assert kernel.template.hbm_bytes == 2 * 4 * (1 << 16)


@pytest.mark.adr("0067-D1")
def test_a_kernel_that_decides_by_data_sees_what_came_before(tmp_path: Path) -> None:
    source = """
x = torch.arange(32.0, device="cuda").view(8, 4)
index = torch.tensor([6, 1, 7], device="cuda")
y = torch.zeros(3, 4, device="cuda")
index.sub_(1)
gather[(3,)](x, index, y, BLOCK=4)
index.zero_()
assert torch.equal(y, x[[5, 0, 6]])
"""
    context = run(tmp_path, source)
    assert "gather" in {each.template.name for each in context.op_log.instances}


def test_views_autotuning_and_the_active_device_work(tmp_path: Path) -> None:
    source = """
device = triton.runtime.driver.active.get_active_torch_device()
x = torch.arange(8.0, device=device).view(4, 2)
assert x.device == device == torch.device("cuda", 0)
tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 32)], key=["count"])(double)
y = torch.zeros(10, device="cuda")
tuned[lambda meta: (triton.cdiv(4, meta["BLOCK"]),)](x[2:], y[3:], 4)
assert y.tolist() == [0] * 3 + [8, 10, 12, 14] + [0] * 3
assert isinstance(triton.testing.do_bench(lambda: double[(1,)](x, y, 8, BLOCK=16)), float)
assert y.tolist() == [0] * 3 + [8, 10, 12, 14] + [0] * 3
"""
    run(tmp_path, source)


@pytest.mark.adr("0067-D3")
def test_triton_and_torch_name_the_same_kind_of_device(tmp_path: Path) -> None:
    source = """
target = triton.runtime.driver.active.get_current_target()
major, minor = torch.cuda.get_device_capability()
assert getattr(torch, target.backend) is torch.cuda
assert (target.arch, target.warp_size) == (10 * major + minor, 32)
x = torch.ones(8, device=target.backend)
y = torch.empty_like(x)
double[(1,)](x, y, 8, BLOCK=8)
assert y.tolist() == [2.0] * 8
"""
    run(tmp_path, source)


@pytest.mark.adr("0105-D1")
@pytest.mark.adr("0105-D3")
def test_a_machine_that_is_cudas_says_so_to_pytorch_and_to_kernels(tmp_path: Path) -> None:
    source = """
import triton.language as tl

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
"""
    run(tmp_path, source, machine="a100-sxm-80g")


def test_a_gradient_that_autograd_makes_up_can_be_given_to_a_kernel(tmp_path: Path) -> None:
    # Nothing uses the second result: autograd hands zeros to backward in its place.
    source = """
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
"""
    run(tmp_path, source)


@pytest.mark.adr("0067-D2")
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        ("double[(1,)](x.cpu(), y, 8, BLOCK=8)", BadPointerError, r'lies on cpu.*\.to\("cuda"\)'),
        ("double[(1,)](x, y.to('cuda:1'), 8, BLOCK=8)", BadPointerError, "lies on cuda:1, but"),
        ("double[(1,)](x, y, 9, BLOCK=16)", OutOfBoundsError, "reads 4 bytes at x"),
    ],
)
def test_arguments_that_a_kernel_cannot_have_are_refused(
    tmp_path: Path, call: str, kind: type[Exception], words: str
) -> None:
    source = f"x, y = torch.ones(8, device='cuda'), torch.ones(9, device='cuda')\n{call}"
    with pytest.raises(kind, match=words):
        run(tmp_path, source)


@pytest.mark.adr("0067-D2")
def test_a_kernel_on_a_tensor_of_a_collective_under_way_is_refused(tmp_path: Path) -> None:
    source = """
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(8, device="cuda")
y = torch.empty_like(x)
work = dist.all_reduce(x, async_op=True)
double[(1,)](x, y, 8, BLOCK=8)
work.wait()
"""
    with pytest.raises(SpawnException) as caught:
        run(tmp_path, source, nprocs=2)
    (error, *_) = caught.value.exceptions
    assert isinstance(error, UsageError)
    assert "argument x of kernel double reads a tensor" in str(error)
    assert "in use by all_reduce #1" in str(error)


CUSTOM = """
@torch.library.custom_op("kernbench_tests::doubled", mutates_args=(), **OPTIONS)
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
assert y.is_cuda and y.device == x.grad.device
out = torch.zeros(200, device="cuda")
double_into(x.detach(), out)
if DATA:
    assert torch.equal(y, 2 * x) and (x.grad == 2).all() and torch.equal(out, y)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g), torch.no_grad():
        z = doubled(x) + 1
    with torch.no_grad():
        x.fill_(3)
    g.replay()
    assert (z == 7).all()
"""


@pytest.mark.adr("0067-D1")
@pytest.mark.parametrize("options", ["{}", "{'device_types': 'cuda'}"])
@pytest.mark.parametrize("data", [True, False])
def test_operations_of_the_program_are_its_kernels(
    options: str, data: bool, tmp_path: Path
) -> None:
    context = run(tmp_path, f"OPTIONS, DATA = {options}, {data}\n{CUSTOM}", data=data)
    names = [each.template.name for each in context.op_log.instances]
    assert names.count("double") == 3 + data
    assert not any(name.startswith("kernbench_tests") for name in names)


POINTERS = """
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
"""


def test_an_object_with_an_address_points_there(tmp_path: Path) -> None:
    source = """
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
"""
    run(tmp_path, POINTERS + source)


def test_a_table_holds_addresses_of_live_tensors(tmp_path: Path) -> None:
    source = """
xs = [torch.full((2,), float(i), device="cuda") for i in range(8)]
whole = torch.arange(6.0, device="cuda")
given = [*xs, whole[2:4]]
table = torch.tensor([x.data_ptr() for x in given], device="cuda")
double_each[(9,)](table, 2, BLOCK=2)
assert [x.tolist() for x in xs] == [[2 * i] * 2 for i in range(8)]
assert whole.tolist() == [0, 1, 4, 6, 4, 5]
assert whole.untyped_storage().nbytes() == 24
"""
    run(tmp_path, POINTERS + source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "double[(1,)](At(torch.zeros(2, device='cuda'), 0), y, 2, BLOCK=2)",
            "argument x of kernel double, a At, goes to address 0x.* no live tensor",
        ),
        (
            "double[(1,)](At(y, 1 << 30), y, 2, BLOCK=2)",
            "argument x of kernel double, a At, goes to address 0x.* no live tensor",
        ),
        (
            "double[(1,)](At(torch.zeros(2), 0), y, 2, BLOCK=2)",
            "argument x of kernel double, a At, goes to .* is it on the host",
        ),
        (
            "x = torch.zeros(2, device='cuda:1')\ndouble[(1,)](At(x, 0), y, 2, BLOCK=2)",
            "argument x of kernel double lies on cuda:1, but the current device is cuda:0",
        ),
        (
            "x = torch.zeros(2, device='cuda:1')\n"
            "double_each[(1,)](torch.tensor([x.data_ptr()], device='cuda'), 2, BLOCK=2)",
            r"tt.load at .* \(program \(0, 0, 0\)\), which lies on cuda:1, but the kernel runs on",
        ),
        (
            "t = torch.tensor([torch.zeros(2, device='cuda').data_ptr()], device='cuda')\n"
            "double_each[(1,)](t, 2, BLOCK=2)",
            "belongs to no live tensor",
        ),
    ],
)
def test_an_address_of_no_live_tensor_is_refused(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(BadPointerError, match=words):
        run(tmp_path, POINTERS + "y = torch.zeros(2, device='cuda')\n" + source)


LOOKUP = """
@triton.jit
def decode(codes, table, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(table + tl.load(codes + at)))

n = 1 << 20
codes = torch.zeros(n, dtype=torch.int32, device="cuda")
table, y = torch.zeros(ENTRIES, device="cuda"), torch.empty(n, device="cuda")
decode[(n // 1024,)](codes, table, y, BLOCK=1024)
"""


@pytest.mark.adr("0100-D4")
@pytest.mark.parametrize("data", [True, False])
def test_a_lookup_costs_no_more_than_its_table_and_its_assumption_is_said(
    tmp_path: Path, data: bool
) -> None:
    moved, said = {}, {}
    for entries in (16, 1 << 24):
        source = LOOKUP.replace("ENTRIES", str(entries))
        context = run(tmp_path, source, machine="h100-sxm", data=data)
        (kernel,) = [each for each in context.report()["kernels"] if each["name"] == "decode"]
        moved[entries] = kernel["bytes"]
        said[entries] = [line for ask in context.remarks for line in ask() if "far apart" in line]
    codes_and_results = 2 * 4 * (1 << 20)
    assert codes_and_results < moved[16] < 1.01 * codes_and_results
    # A table that the cache cannot keep: a burst of 64 bytes for each number.
    assert moved[1 << 24] == codes_and_results + 64 * (1 << 20)
    assert said[16] == []
    (line,) = said[1 << 24]
    assert "decode (program.py:" in line
