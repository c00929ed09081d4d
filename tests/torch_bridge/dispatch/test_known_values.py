"""Numbers of a device that a run without data knows all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import BadPointerError, KernbenchError, NoDataError  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, *, nprocs: int = 1, data: bool = False) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text("import torch\nimport torch.distributed as dist\n" + source)
    return simulated(path, data=data, nprocs=nprocs)


@pytest.mark.adr("0098-D1")
def test_what_follows_from_the_program_is_known(tmp_path: Path) -> None:
    source = """
x = torch.full((2, 3), 7.0, device="cuda")
assert x.sum().item() == 42 and x.int().sum().item() == 42
assert (x > 1).all() and not bool(x.isnan().any())
assert torch.equal(x.cpu(), torch.full((2, 3), 7.0)) and x.tolist() == [[7.0] * 3] * 2
host = torch.zeros(2, 3)
host.copy_(x[:, :1] - 6)
assert host.tolist() == [[1.0] * 3] * 2
assert torch.equal(x, x + 0) and not torch.equal(x, x + 1)
counts = torch.tensor([3, 1, 4]).cuda()
counts[1] = 5
counts[2:].zero_()
counts += torch.arange(3, device="cuda")
assert counts.tolist() == [3, 6, 2]
fresh = torch.empty(2, 2, device="cuda", dtype=torch.int64)
fresh.T.fill_(4)  # not all of a storage, as far as its strides tell: taken for unknown
assert fresh.tolist() == [[0, 0], [0, 0]]
fresh.fill_(4)
assert fresh.tolist() == [[4, 4], [4, 4]]
assert torch.tensor([1 + 2j], device="cuda").imag.tolist() == [2.0]
with torch.inference_mode():
    made = torch.ones(3, device="cuda")
assert made.clone().add_(1).tolist() == [2.0, 2.0, 2.0]
"""
    run(tmp_path, source)


IN_TURNS = """
import random

KINDS = ("add", "mul", "view", "write", "number", "cat", "mask", "where", "cumsum", "unknown")

def step(draw, tensors, on):
    kind = draw.choice(KINDS)
    x, y = (tensors[draw.randrange(len(tensors))] for _ in range(2))
    number = draw.randrange(5)
    if kind == "add":
        return x.reshape(-1)[:3] + y.reshape(-1)[:3]
    if kind == "mul":
        return x * number
    if kind == "view":
        return x.T if x.dim() == 2 and number else x.reshape(-1)[number % 2 :]
    if kind == "write":
        x.reshape(-1)[:2].copy_(y.reshape(-1)[:2])
        return x
    if kind == "number":
        x[0] = number
        return x
    if kind == "cat":
        return torch.cat([x.reshape(-1)[:4], y.reshape(-1)[:4]]).view(2, -1)
    if kind == "mask":
        return (x > number).nonzero().reshape(-1).float() if x.numel() > 2 else x
    if kind == "where":
        return torch.where(x > number, x, -1.0)
    if kind == "cumsum":
        return x.cumsum(0) % 7
    return x.sort(0).values

def enough(x):
    return x.numel() >= 4

for seed in range(SEEDS):
    def results(on):
        draw = random.Random(seed)
        tensors = [torch.arange(6.0, device=on).view(2, 3), torch.tensor([4.0, 1, 3, 2]).to(on)]
        for _ in range(12):
            made = step(draw, tensors, on)
            tensors[draw.randrange(len(tensors))] = made if enough(made) else tensors[0].clone()
        return [each.tolist() for each in tensors]
    assert results("cuda") == results("cpu"), seed
"""


@pytest.mark.slow
@pytest.mark.adr("0098-D1")
def test_chains_of_operations_are_those_of_the_host(tmp_path: Path) -> None:
    run(tmp_path, IN_TURNS.replace("SEEDS", "60"))


@pytest.mark.adr("0098-D2")
@pytest.mark.parametrize(
    "write",
    [
        "known.copy_(unknown)",
        "known[1] = unknown[0]",
        "known.view(3, 1)[2:].add_(unknown[:1, None])",
        "torch.add(known, unknown, out=known)",
        "known.normal_()",
        "known.index_copy_(0, torch.tensor([1, 2]).cuda(), unknown[:2])",
        "torch._foreach_add_([known], [unknown])",
        "torch.randn(3, out=known)",
    ],
)
def test_what_is_written_with_unknown_numbers_reads_as_zero(tmp_path: Path, write: str) -> None:
    source = f"""
known, unknown = torch.ones(3, device="cuda"), torch.randn(3, device="cuda")
alias = known.detach()[:2]
assert known.tolist() == [1.0] * 3
{write}
assert known.tolist() == [0.0] * 3 and alias.tolist() == [0.0] * 2
"""
    run(tmp_path, source)


@pytest.mark.adr("0098-D2")
def test_what_is_written_unsaid_or_through_a_lazy_view_reads_as_zero(tmp_path: Path) -> None:
    source = """
norm = torch.nn.BatchNorm1d(3, affine=False).cuda()
assert norm.running_var.tolist() == [1.0] * 3
norm(torch.randn(8, 3, device="cuda"))  # the schema does not say that it writes running statistics
assert norm.running_var.tolist() == [0.0] * 3 and norm.num_batches_tracked.item() == 1
for write in (lambda x: x.conj().copy_(torch.randn_like(x)), lambda x: x.conj().fill_(2)):
    known = torch.tensor([1 + 2j, 3]).cuda()
    assert known.tolist() == [1 + 2j, 3]
    write(known)
    assert known.tolist() == [0j, 0j]
"""
    run(tmp_path, source)


@pytest.mark.adr("0098-D2")
def test_what_nobody_knows_reads_as_zero(tmp_path: Path) -> None:
    source = """
x = torch.randn(2, 3, device="cuda") + 1
assert x.sum().item() == 0.0 and x.int().sum().item() == 0
assert not (x > 1).any() and not bool(x.isnan().any())
assert torch.equal(x.cpu(), torch.zeros(2, 3)) and x.tolist() == [[0.0] * 3] * 2
assert torch.equal(x, x + 1) and not torch.equal(x, x[:1])  # shapes
host = torch.ones(2, 3)
host.copy_(x)
assert not host.any()
assert repr(x) == "tensor(..., device='cuda:0', size=(2, 3), dtype=torch.float32)"
assert torch.ones(2).tolist() == [1.0, 1.0]  # the host's own tensors have data
assert torch.ones(200, 200, device="cuda").sum().item() == 0.0  # too large to be kept
"""
    run(tmp_path, source)


@pytest.mark.adr("0098-D2")
def test_what_a_kernel_or_a_capture_has_written_is_unknown(tmp_path: Path) -> None:
    source = """
import triton
import triton.language as tl

@triton.jit
def double(x, y):
    at = tl.arange(0, 4)
    tl.store(y + at, 2 * tl.load(x + at))

x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
double[(1,)](x, y)
assert x.tolist() == [1.0] * 4 and y.tolist() == [0.0] * 4
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x += 1
    z = x * 2
assert x.tolist() == [0.0] * 4 and z.tolist() == [0.0] * 4
"""
    run(tmp_path, source)


@pytest.mark.adr("0098-D3")
def test_a_generator_comes_to_its_longest_length(tmp_path: Path) -> None:
    source = """
weight = torch.randn(16, 16, device="cuda")
tokens = torch.tensor([[1], [2]]).cuda()
unfinished = torch.ones(2, dtype=torch.long, device="cuda")
length = 1
while True:
    chosen = torch.nn.functional.embedding(tokens[:, -1], weight).argmax(-1)
    tokens = torch.cat([tokens, chosen[:, None]], -1)
    length += 1
    done = torch.full((2,), length >= 6, device="cuda", dtype=torch.bool)
    done = done | (chosen == 3)
    unfinished = unfinished & ~done
    if unfinished.max() == 0:
        break
    assert length < 6
assert tokens.shape == (2, 6)
for name in ("and", "or"):
    which, known = getattr(torch, f"logical_{name}"), torch.tensor([name == "or"]).cuda()
    for given in ((known, chosen == 3), (chosen == 3, known)):
        assert which(*given).tolist() == [name == "or"] * 2
    assert which(~known, chosen == 3).tolist() == [False, False]  # nobody knows
"""
    run(tmp_path, source)


@pytest.mark.adr("0098-D4")
def test_shapes_that_known_numbers_decide_are_known(tmp_path: Path) -> None:
    source = """
mask = torch.tensor([[1, 0, 1, 0, 1]] * 4).bool().cuda()
unknown = torch.randn(4, 5, 7, device="cuda")
assert mask.nonzero().shape == (12, 2) and mask.nonzero()[-1].tolist() == [3, 4]
assert unknown[mask].shape == (12, 7) and unknown[:, mask[0]].shape == (4, 3, 7)
assert unknown[torch.arange(4, device="cuda"), :, mask[:, 0].long()].shape == (4, 5)
assert torch.masked_select(unknown, mask[:, :, None]).shape == (84,)
assert torch.repeat_interleave(torch.tensor([2, 0, 3]).cuda()).tolist() == [0, 0, 2, 2, 2]
assert unknown[mask].sum().item() == 0.0
for _ in range(2):  # what comes out is not kept by shape
    assert mask[0].nonzero().shape == (3, 1) and (~mask[0]).nonzero().shape == (2, 1)
"""
    run(tmp_path, source)


@pytest.mark.adr("0098-D4")
@pytest.mark.parametrize("call", ["x.nonzero()", "y[x > 0]", "torch.masked_select(y, x > 0)"])
def test_shapes_that_unknown_numbers_decide_are_refused_by_name(tmp_path: Path, call: str) -> None:
    source = f"""
x, y = torch.randn(4, device="cuda"), torch.ones(4, device="cuda")
{call}
"""
    with pytest.raises(KernbenchError, match=r"aten\.\w+\.\w+: .*--no-data"):
        run(tmp_path, source)


@pytest.mark.adr("0098-D5")
def test_ranks_agree_on_what_each_knows(tmp_path: Path) -> None:
    source = """
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.full((2,), rank + 1.0, device="cuda")
dist.all_reduce(x)
assert x.tolist() == [3.0, 3.0]
parts = [torch.empty(1, device="cuda") for _ in range(2)]
dist.all_gather(parts, x[:1] * (rank + 1))
assert [each.item() for each in parts] == [3.0, 6.0]
flag = torch.tensor([7 if rank == 0 else 8]).cuda()
dist.broadcast(flag, 0)
assert flag.item() == 7
mixed = torch.ones(2, device="cuda") if rank else torch.randn(2, device="cuda")
dist.all_reduce(mixed)
assert mixed.tolist() == [0.0, 0.0]
x = torch.ones(2, device="cuda")
dist.broadcast(x if rank else torch.randn(2, device="cuda"), 0)
assert x.tolist() == ([0.0, 0.0] if rank else [1.0, 1.0])
"""
    run(tmp_path, source, nprocs=2)


KERNELS = """
import triton, triton.language as tl

@triton.jit
def sum_rows(x, lengths, y, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(lengths + row)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, mask=at < n, other=0)
    tl.store(y + row, tl.sum(total))

@triton.jit
def find_offsets(lengths, offsets, n):
    total = 0
    i = 0
    while i < n:
        tl.store(offsets + i, total)
        total += tl.load(lengths + i)
        if total > 1 << 20:
            i = n
        i += 1

@triton.jit
def double_each(table, n, BLOCK: tl.constexpr):
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

lengths = torch.tensor([5, 100, 1000, 0, 300], dtype=torch.int32).cuda()
x = torch.randn(5, 1000, device="cuda")
y = torch.zeros(5, device="cuda")
"""
LIVE = """
offsets = torch.zeros(5, dtype=torch.int32, device="cuda")
kept = torch.arange(4.0, device="cuda")
sum_rows[(4,)](x, lengths[1:], y, 1000, BLOCK=128)
find_offsets[(1,)](lengths, offsets, 5)
sum_rows[(5,)](x, offsets // 4, y, 1000, BLOCK=128)
table = torch.tensor([each.data_ptr() for each in x], device="cuda")
double_each[(5,)](table, 1000, BLOCK=1024)
double_each[(2,)](torch.tensor([kept.data_ptr(), kept[2:].data_ptr()]).cuda(), 2, BLOCK=2)
assert lengths.tolist() == [5, 100, 1000, 0, 300]
assert offsets.tolist() == [0, 5, 105, 1105, 1105]
assert kept.tolist() == [0, 2, 4, 6]
"""


@pytest.mark.adr("0104-D1")
def test_kernels_decide_by_known_numbers_and_take_the_time_that_data_takes(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import torch\n" + KERNELS + LIVE)
    names = ("sum_rows", "find_offsets", "double_each")
    found = []
    for data in (True, False):
        context = simulated(path, machine="h100-sxm", data=data)
        found.append(
            [
                (each.template.name, each.ends_ps[0] - each.starts_ps[0])
                for each in context.op_log.instances
                if each.template.name in names
            ]
        )
    assert len(found[0]) == 5
    assert found[0] == found[1]


@pytest.mark.adr("0104-D1")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("sum_rows[(5,)](x, x.argmax(1).int(), y, 1000, BLOCK=128)", "scf.for .* needs data"),
        (
            "double_each[(5,)](torch.randint(0, 9, (5,), device='cuda'), 2, BLOCK=2)",
            "program.py:.* needs data: .* run has none",
        ),
        (
            "find_offsets[(1,)](x.argmax(1).int(), lengths, 5)\n"
            "sum_rows[(5,)](x, lengths, y, 1000, BLOCK=128)",
            "scf.* in kernel find_offsets at program.py:.* needs data",
        ),
        (
            "double_each[(1,)](torch.tensor([lengths.data_ptr()], device='cuda'), 2, BLOCK=2)\n"
            "lengths.random_(0, 9)\nsum_rows[(5,)](x, lengths, y, 1000, BLOCK=128)",
            "scf.for .* needs data",
        ),
        (
            "t = torch.tensor([torch.zeros(1 << 20, device='cuda').data_ptr()], device='cuda')\n"
            "double_each[(1,)](t, 2, BLOCK=2)",
            "belongs to no live tensor",
        ),
    ],
)
def test_what_nobody_knows_stays_an_error(tmp_path: Path, source: str, words: str) -> None:
    path = tmp_path / "program.py"
    path.write_text("import torch\n" + KERNELS + source)
    with pytest.raises((NoDataError, BadPointerError), match=words):
        simulated(path, machine="h100-sxm", data=False)


def test_what_a_kernel_writes_of_unknown_numbers_is_unknown(tmp_path: Path) -> None:
    source = """
sums = torch.full((5,), 7.0, device="cuda")
sum_rows[(5,)](x, lengths, sums, 1000, BLOCK=128)
assert sums.tolist() == [0.0] * 5
"""
    path = tmp_path / "program.py"
    path.write_text("import torch\n" + KERNELS + source)
    simulated(path, machine="h100-sxm", data=False)


@pytest.mark.parametrize("data", [True, False])
def test_numbers_of_a_device_among_others_are_read_by_the_host(tmp_path: Path, data: bool) -> None:
    source = """
known, norm = torch.tensor(3, device="cuda").int(), torch.ones(4, device="cuda").norm()
unknown = torch.rand(1, device="cuda").norm() * 0
x = torch.ones(2, 2, device="cuda", dtype=torch.float64)
for made in (torch.tensor([known, 4]), torch.as_tensor((known, 4)), torch.asarray([known, 4])):
    assert made.tolist() == [3, 4] and not made.is_cuda and made.dtype is torch.int64
assert torch.tensor([known]).dtype is torch.int32
assert torch.tensor([[known, 1.5], [unknown, norm]]).tolist() == [[3, 1.5], [0, 2]]
assert torch.tensor([known > 2, False]).tolist() == [True, False]
assert torch.Tensor([norm, unknown]).tolist() == [2, 0]
weight = torch.nn.Parameter(norm.clone())
for made in (x.new_tensor([norm, weight]), torch.cuda.DoubleTensor([norm, weight])):
    assert made.is_cuda and made.dtype is torch.float64 and made.tolist() == [2, 2]
assert torch.tensor([1, 2.5]).tolist() == [1, 2.5] and torch.tensor([]).shape == (0,)
# The host waits for each of them.
x = torch.ones(1024, 1024, device="cuda")
norms = [(x @ x).norm() for _ in range(2)]
assert not torch.cuda.current_stream().query()
torch.tensor(norms)
assert torch.cuda.current_stream().query()
try:
    torch.tensor([x[0], x[1]])
except ValueError as error:
    assert "only one element" in str(error)
else:
    assert False
"""
    context = run(tmp_path, source, data=data)
    copies = [each for each in context.op_log.instances if each.template.name == "copy_to_host"]
    assert len(copies) >= 12
