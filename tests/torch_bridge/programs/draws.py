"""Draws of random numbers on a device; each function compares them with those of the CPU.

python draws.py CASE [ARGUMENTS]
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

DRAWS = {
    "rand": lambda n, place: torch.rand(n, device=place),
    "randn": lambda n, place: torch.randn(n, device=place),
    "double": lambda n, place: torch.randn(n, device=place, dtype=torch.float64),
    "half": lambda n, place: torch.rand(n, device=place, dtype=torch.float16),
    "randint": lambda n, place: torch.randint(100, (n,), device=place),
    "into": lambda n, place: torch.randint(
        100, (n,), out=torch.empty(n, dtype=torch.int64, device=place)
    ),
    "randperm": lambda n, place: torch.randperm(n, device=place),
    "dropout": lambda n, place: F.dropout(torch.ones(n, device=place), 0.3),
    "bernoulli": lambda n, place: torch.full((n,), 0.5, device=place).bernoulli(),
    "multinomial": lambda n, place: torch.ones(n, device=place).multinomial(1),
    "like": lambda n, place: torch.rand_like(torch.ones(n, device=place)),
    "layer": lambda n, place: torch.nn.Linear(n, 3, device=place).weight,
    "init": lambda n, place: torch.nn.init.trunc_normal_(torch.empty(n, device=place)),
}


def draws_of_a_device_are_those_of_the_cpu(seed: str, *draws: str) -> None:
    def drawn(place):
        asked = (draw.split(":") for draw in draws)
        return [DRAWS[name](int(size), place) for name, size in asked]

    torch.manual_seed(int(seed))
    device = drawn("cuda")
    torch.manual_seed(int(seed))
    host = drawn("cpu")
    torch.manual_seed(int(seed))
    torch.rand(5)  # the host's generator is another
    again = drawn("cuda")
    for there, here, other in zip(device, host, again, strict=True):
        assert there.is_cuda
        assert torch.equal(there.cpu(), here)
        assert torch.equal(there, other)


def save_states(folder: str) -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    torch.randn(7, device="cuda")
    state, offset = torch.cuda.get_rng_state(), torch.cuda.default_generators[0].get_offset()
    assert state.shape == (16,)
    assert offset == 8
    copied = state.clone()
    expected = torch.randn(7, device="cuda"), torch.rand(3, device="cuda")

    def check(what):
        tensors = torch.randn(7, device="cuda"), torch.rand(3, device="cuda")
        assert all(map(torch.equal, tensors, expected)), what

    torch.cuda.set_rng_state(state)
    check("state")
    torch.cuda.set_rng_state(copied)
    check("copy")
    torch.cuda.default_generators[0].set_offset(offset)
    check("offset")
    other = torch.Generator("cuda").set_state(copied)
    assert torch.equal(torch.randn(7, device="cuda", generator=other), expected[0])
    same = other.clone_state()
    assert torch.equal(*(torch.rand(3, device="cuda", generator=item) for item in (other, same)))
    # The host's numbers go on as if there were no device.
    torch.manual_seed(1)
    host = torch.randn(7), torch.randn(7), torch.rand(3)
    assert torch.equal(host[1], expected[0].cpu())
    assert torch.equal(host[2], expected[1].cpu())
    # Where nobody has been.
    edited = state.clone()
    edited[8:].view(torch.int64)[0] = 4000
    far = []
    for _ in range(2):
        torch.cuda.set_rng_state(edited)
        far.append(torch.rand(4, device="cuda"))
    assert torch.equal(*far)
    own = state[:]
    own[8:].view(torch.int64)[0] = 4000
    torch.cuda.set_rng_state(own)
    assert torch.equal(torch.rand(4, device="cuda"), far[0])
    # What is computed again draws again.
    x = torch.ones(64, device="cuda", requires_grad=True)
    for reentrant in (False, True):
        seen: list = []

        def layer(x, seen=seen):
            dropped = F.dropout(x, 0.5)
            seen.append(dropped.detach())
            return dropped * dropped

        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        assert torch.equal(*seen)
    torch.manual_seed(1)
    torch.randn(7, device="cuda")
    torch.save(torch.cuda.get_rng_state(), f"{folder}/state.pt")
    torch.save([item.cpu() for item in expected], f"{folder}/expected.pt")


def resume(folder: str) -> None:
    torch.cuda.set_rng_state(torch.load(f"{folder}/state.pt"))
    tensors = torch.randn(7, device="cuda"), torch.rand(3, device="cuda")
    expected = torch.load(f"{folder}/expected.pt")
    assert all(
        torch.equal(item.cpu(), other) for item, other in zip(tensors, expected, strict=True)
    )


def ranks_that_drew_differently_draw_alike_for_a_dtensor() -> None:
    from torch.distributed.tensor import Replicate, Shard, init_device_mesh, rand

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(5)
    for _ in range(2):
        (torch.rand if rank else torch.randn)(8, device="cuda")
    mesh = init_device_mesh("cuda", (2,))
    whole = rand(8, 4, device_mesh=mesh, placements=[Replicate()]).to_local()
    both = [torch.empty_like(whole) for _ in range(2)]
    dist.all_gather(both, whole)
    assert torch.equal(*both)
    parts = [torch.empty(4, 4, device="cuda") for _ in range(2)]
    dist.all_gather(parts, rand(8, 4, device_mesh=mesh, placements=[Shard(0)]).to_local())
    assert not torch.equal(*parts)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
