"""What is known of tensors in a run without data, and what reads as zero.

python known_values.py CASE
"""

import random
import sys

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

from kernbench.errors import KernbenchError


def what_follows_from_the_program_is_known() -> None:
    x = torch.full((2, 3), 7.0, device="cuda")
    assert x.sum().item() == 42
    assert x.int().sum().item() == 42
    assert (x > 1).all()
    assert not bool(x.isnan().any())
    assert torch.equal(x.cpu(), torch.full((2, 3), 7.0))
    assert x.tolist() == [[7.0] * 3] * 2
    host = torch.zeros(2, 3)
    host.copy_(x[:, :1] - 6)
    assert host.tolist() == [[1.0] * 3] * 2
    assert torch.equal(x, x + 0)
    assert not torch.equal(x, x + 1)
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
        tensor = torch.ones(3, device="cuda")
    assert tensor.clone().add_(1).tolist() == [2.0, 2.0, 2.0]
    # The host counts no integers: it does so in float64.
    experts = torch.arange(12, device="cuda") % 4
    assert torch.histc(experts, bins=4, min=0, max=4).tolist() == [3, 3, 3, 3]


def write(x, y, number):
    x.reshape(-1)[:2].copy_(y.reshape(-1)[:2])
    return x


def set_first(x, y, number):
    x[0] = number
    return x


STEPS = [
    lambda x, y, number: x.reshape(-1)[:3] + y.reshape(-1)[:3],
    lambda x, y, number: x * number,
    lambda x, y, number: x.T if x.dim() == 2 and number else x.reshape(-1)[number % 2 :],
    write,
    set_first,
    lambda x, y, number: torch.cat([x.reshape(-1)[:4], y.reshape(-1)[:4]]).view(2, -1),
    lambda x, y, number: (x > number).nonzero().reshape(-1).float() if x.numel() > 2 else x,
    lambda x, y, number: torch.where(x > number, x, -1.0),
    lambda x, y, number: x.cumsum(0) % 7,
    lambda x, y, number: x.sort(0).values,
]


def chains_of_operations_are_those_of_the_host(seeds: str) -> None:
    def results(on, seed):
        draw = random.Random(seed)
        tensors = [torch.arange(6.0, device=on).view(2, 3), torch.tensor([4.0, 1, 3, 2]).to(on)]
        for _ in range(12):
            step = draw.choice(STEPS)
            value = [tensors[draw.randrange(len(tensors))] for _ in range(2)]
            result = step(value[0], value[1], draw.randrange(5))
            kept = result if result.numel() >= 4 else tensors[0].clone()
            tensors[draw.randrange(len(tensors))] = kept
        return [tensor.tolist() for tensor in tensors]

    for seed in range(int(seeds)):
        assert results("cuda", seed) == results("cpu", seed), seed


def what_is_written_with_unknown_numbers_reads_as_zero() -> None:
    def set_second(known, unknown):
        known[1] = unknown[0]

    for write in (
        lambda known, unknown: known.copy_(unknown),
        set_second,
        lambda known, unknown: known.view(3, 1)[2:].add_(unknown[:1, None]),
        lambda known, unknown: torch.add(known, unknown, out=known),
        lambda known, unknown: known.normal_(),
        lambda known, unknown: known.index_copy_(0, torch.tensor([1, 2]).cuda(), unknown[:2]),
        lambda known, unknown: torch._foreach_add_([known], [unknown]),
        lambda known, unknown: torch.randn(3, out=known),
    ):
        known, unknown = torch.ones(3, device="cuda"), torch.randn(3, device="cuda")
        alias = known.detach()[:2]
        assert known.tolist() == [1.0] * 3
        write(known, unknown)
        assert known.tolist() == [0.0] * 3
        assert alias.tolist() == [0.0] * 2


def what_is_written_unsaid_or_through_a_lazy_view_reads_as_zero() -> None:
    norm = torch.nn.BatchNorm1d(3, affine=False).cuda()
    assert norm.running_var.tolist() == [1.0] * 3
    # The schema does not say that it writes running statistics.
    norm(torch.randn(8, 3, device="cuda"))
    assert norm.running_var.tolist() == [0.0] * 3
    assert norm.num_batches_tracked.item() == 1
    for write in (lambda x: x.conj().copy_(torch.randn_like(x)), lambda x: x.conj().fill_(2)):
        known = torch.tensor([1 + 2j, 3]).cuda()
        assert known.tolist() == [1 + 2j, 3]
        write(known)
        assert known.tolist() == [0j, 0j]


def a_move_to_meta_leaves_the_device() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.zeros(4, 2, device="cuda").t()
    shapes = [x.to("meta"), x.to(device=torch.device("meta")), x.to("meta", torch.float16)]
    del x
    assert torch.cuda.memory_allocated() == before
    assert all(item.is_meta and item.stride() == (1, 2) for item in shapes)
    assert [item.dtype for item in shapes] == [torch.float32, torch.float32, torch.float16]
    # Engines make the weights again by it.
    assert torch.empty_like(shapes[0], device="cuda").is_cuda


def what_nobody_knows_reads_as_zero() -> None:
    x = torch.randn(2, 3, device="cuda") + 1
    assert x.sum().item() == 0.0
    assert x.int().sum().item() == 0
    assert not (x > 1).any()
    assert not bool(x.isnan().any())
    assert torch.equal(x.cpu(), torch.zeros(2, 3))
    assert x.tolist() == [[0.0] * 3] * 2
    assert torch.equal(x, x + 1)
    assert not torch.equal(x, x[:1])
    host = torch.ones(2, 3)
    host.copy_(x)
    assert not host.any()
    assert repr(x) == "tensor(..., device='cuda:0', size=(2, 3), dtype=torch.float32)"
    assert torch.ones(2).tolist() == [1.0, 1.0]  # the host's own tensors have data
    assert torch.ones(2000, 2200, device="cuda").sum().item() == 0.0  # too large to be kept


def what_a_kernel_or_a_capture_has_written_is_unknown() -> None:
    @triton.jit
    def double(x, y):
        at = tl.arange(0, 4)
        tl.store(y + at, 2 * tl.load(x + at))

    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    double[(1,)](torch.randn(4, device="cuda"), y)
    assert x.tolist() == [1.0] * 4
    assert y.tolist() == [0.0] * 4
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
        z = x * 2
    assert x.tolist() == [0.0] * 4
    assert z.tolist() == [0.0] * 4


def what_a_kernel_computes_of_known_numbers_is_known() -> None:
    @triton.jit
    def double(x, y, n):
        at = tl.arange(0, 8)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    x = torch.arange(8.0, device="cuda")
    y, part, unknown = torch.empty_like(x), torch.empty_like(x), torch.randn(8, device="cuda")
    double[(1,)](x, y, 8)
    assert y.tolist() == [2.0 * index for index in range(8)]
    # In place, and through views of one memory.
    double[(1,)](y[4:], y, 4)
    assert y.tolist() == [16.0, 20.0, 24.0, 28.0, 8.0, 10.0, 12.0, 14.0]
    # What it leaves of unknown memory stays unknown, and all of that with it.
    double[(1,)](x, part, 7)
    double[(1,)](x, unknown, 7)
    double[(1,)](unknown, x, 8)
    assert part.tolist() == unknown.tolist() == x.tolist() == [0.0] * 8
    large = torch.empty(1 << 15, device="cuda")
    double[(1,)](y, large, 8)
    assert large[:8].tolist() == [0.0] * 8


def a_generator_comes_to_its_longest_length() -> None:
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
        for value in ((known, chosen == 3), (chosen == 3, known)):
            assert which(*value).tolist() == [name == "or"] * 2
        assert which(~known, chosen == 3).tolist() == [False, False]  # nobody knows


def shapes_that_known_numbers_decide_are_known() -> None:
    mask = torch.tensor([[1, 0, 1, 0, 1]] * 4).bool().cuda()
    unknown = torch.randn(4, 5, 7, device="cuda")
    assert mask.nonzero().shape == (12, 2)
    assert mask.nonzero()[-1].tolist() == [3, 4]
    assert unknown[mask].shape == (12, 7)
    assert unknown[:, mask[0]].shape == (4, 3, 7)
    assert unknown[torch.arange(4, device="cuda"), :, mask[:, 0].long()].shape == (4, 5)
    assert torch.masked_select(unknown, mask[:, :, None]).shape == (84,)
    assert torch.repeat_interleave(torch.tensor([2, 0, 3]).cuda()).tolist() == [0, 0, 2, 2, 2]
    assert unknown[mask].sum().item() == 0.0
    for _ in range(2):  # what comes out is not kept by shape
        assert mask[0].nonzero().shape == (3, 1)
        assert (~mask[0]).nonzero().shape == (2, 1)


def shapes_that_unknown_numbers_decide_are_refused_by_name() -> None:
    x, y = torch.randn(4, device="cuda"), torch.ones(4, device="cuda")
    for call in (
        lambda: x.nonzero(),
        lambda: y[x > 0],
        lambda: torch.masked_select(y, x > 0),
    ):
        with pytest.raises(KernbenchError, match=r"aten\.\w+\.\w+: .*--no-data"):
            call()


def routers_choose_experts_evenly() -> None:
    scores = torch.randn(1 << 14, 8, device="cuda").softmax(-1)
    weights, chosen = scores.topk(3, dim=-1)
    # More choices than are kept of other numbers.
    assert chosen[:3].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 0]]
    counts = torch.histc(chosen.view(-1), bins=8, min=0, max=8)
    assert counts.tolist() == [3 * (1 << 14) // 8] * 8
    assert torch.argsort(chosen.view(-1), stable=True)[:2].tolist() == [0, 8]
    assert weights[0].tolist() == [0.0] * 3
    # Tokens are sampled from more than there are choices.
    assert torch.randn(2, 1000, device="cuda").topk(3)[1].tolist() == [[0] * 3] * 2
    # What is known decides.
    assert torch.tensor([[1, 5, 3], [9, 2, 4]]).cuda().topk(2)[1].tolist() == [[1, 2], [0, 2]]


def masks_of_chosen_experts_are_known() -> None:
    experts, tokens, item = 128, 2048, 8
    chosen = torch.randn(tokens, experts, device="cuda").softmax(-1).topk(item, dim=-1)[1]
    mask = torch.nn.functional.one_hot(chosen, experts + 1).permute(2, 1, 0)
    # As loops over experts ask: which have tokens, and which these are.
    assert mask.sum(dim=(-1, -2)).gt(0).nonzero().view(-1).tolist() == [*range(experts)]
    places, rows = torch.where(mask[3])
    assert places.shape == rows.shape == (tokens * item // experts,)
    # Nothing is known of numbers written among as many zeros.
    written = torch.zeros(tokens, experts, device="cuda")
    written[:, 0].copy_(torch.randn(tokens, device="cuda"))
    with pytest.raises(KernbenchError, match="depends on data"):
        written.nonzero()
    # Nor of zeros themselves, which are many: only where choices are written is it asked.
    again = torch.zeros(tokens, experts, dtype=torch.long, device="cuda")
    again.scatter_(1, chosen, 1)
    again.add_(torch.randint(9, (tokens, experts), device="cuda"))
    with pytest.raises(KernbenchError, match="depends on data"):
        again.nonzero()


def routers_whose_choices_nobody_reads() -> None:
    torch.randn(64, 8, device="cuda").topk(3)


def ranks_exchange_what_each_knows() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    counts, taken = torch.arange(4, device="cuda") + 4 * rank, torch.empty(4, device="cuda").long()
    dist.all_to_all_single(taken, counts)
    assert taken.tolist() == [2 * rank, 2 * rank + 1, 2 * rank + 4, 2 * rank + 5]


def counts_that_nobody_knows() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    x = torch.randn(8, 2, device="cuda")
    counts = torch.histc(x.argmax(-1), bins=2, min=0, max=2).tolist()
    with pytest.raises(KernbenchError) as raised:
        dist.all_to_all_single(torch.empty_like(x), x, counts, counts)
    assert "split sizes [0, 0] must be" in str(raised.value)
    assert "zeros in a run with --no-data" in str(raised.value)


def ranks_agree_on_what_each_knows() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    x = torch.full((2,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    assert x.tolist() == [3.0, 3.0]
    parts = [torch.empty(1, device="cuda") for _ in range(2)]
    dist.all_gather(parts, x[:1] * (rank + 1))
    assert [part.item() for part in parts] == [3.0, 6.0]
    flag = torch.tensor([7 if rank == 0 else 8]).cuda()
    dist.broadcast(flag, 0)
    assert flag.item() == 7
    mixed = torch.ones(2, device="cuda") if rank else torch.randn(2, device="cuda")
    dist.all_reduce(mixed)
    assert mixed.tolist() == [0.0, 0.0]
    x = torch.ones(2, device="cuda")
    dist.broadcast(x if rank else torch.randn(2, device="cuda"), 0)
    assert x.tolist() == ([0.0, 0.0] if rank else [1.0, 1.0])


def numbers_of_a_device_among_others_are_read_by_the_host() -> None:
    known, norm = torch.tensor(3, device="cuda").int(), torch.ones(4, device="cuda").norm()
    unknown = torch.rand(1, device="cuda").norm() * 0
    x = torch.ones(2, 2, device="cuda", dtype=torch.float64)
    for tensor in (
        torch.tensor([known, 4]),
        torch.as_tensor((known, 4)),
        torch.asarray([known, 4]),
    ):
        assert tensor.tolist() == [3, 4]
        assert not tensor.is_cuda
        assert tensor.dtype is torch.int64
    assert torch.tensor([known]).dtype is torch.int32
    assert torch.tensor([[known, 1.5], [unknown, norm]]).tolist() == [[3, 1.5], [0, 2]]
    assert torch.tensor([known > 2, False]).tolist() == [True, False]
    assert torch.Tensor([norm, unknown]).tolist() == [2, 0]
    weight = torch.nn.Parameter(norm.clone())
    for result in (x.new_tensor([norm, weight]), torch.cuda.DoubleTensor([norm, weight])):
        assert result.is_cuda
        assert result.dtype is torch.float64
        assert result.tolist() == [2, 2]
    assert torch.tensor([1, 2.5]).tolist() == [1, 2.5]
    assert torch.tensor([]).shape == (0,)
    # The host waits for each of them.
    x = torch.ones(1024, 1024, device="cuda")
    norms = [(x @ x).norm() for _ in range(2)]
    assert not torch.cuda.current_stream().query()
    torch.tensor(norms)
    assert torch.cuda.current_stream().query()
    with pytest.raises(ValueError) as raised:
        torch.tensor([x[0], x[1]])
    assert "only one element" in str(raised.value)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
