"""Random numbers of simulated devices, beside the CPU's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, **options: object) -> None:
    path = folder / "program.py"
    path.write_text("import sys, torch\nimport torch.nn.functional as F\n" + source)
    simulated(path, folder, **options)  # type: ignore[arg-type]


DRAWS = {
    "rand": "torch.rand({n}, device=place)",
    "randn": "torch.randn({n}, device=place)",
    "double": "torch.randn({n}, device=place, dtype=torch.float64)",
    "half": "torch.rand({n}, device=place, dtype=torch.float16)",
    "randint": "torch.randint(100, ({n},), device=place)",
    "randperm": "torch.randperm({n}, device=place)",
    "dropout": "F.dropout(torch.ones({n}, device=place), 0.3)",
    "bernoulli": "torch.full(({n},), 0.5, device=place).bernoulli()",
    "multinomial": "torch.ones({n}, device=place).multinomial(1)",
    "like": "torch.rand_like(torch.ones({n}, device=place))",
    "layer": "torch.nn.Linear({n}, 3, device=place).weight",
    "init": "torch.nn.init.trunc_normal_(torch.empty({n}, device=place))",
}


@pytest.mark.adr("0118-D1")
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(-(1 << 63), (1 << 64) - 1),
    draws=st.lists(st.tuples(st.sampled_from(sorted(DRAWS)), st.integers(1, 40)), max_size=8),
)
def test_draws_of_a_device_are_those_of_the_cpu(
    tmp_path_factory: pytest.TempPathFactory, seed: int, draws: list[tuple[str, int]]
) -> None:
    made = ", ".join(DRAWS[name].format(n=size) for name, size in draws)
    source = f"""
def drawn(place):
    torch.manual_seed({seed})
    return [{made}]
device = drawn("cuda")
torch.manual_seed({seed})
torch.rand(5)  # the host's generator is another
again = [{made.replace("place", '"cuda"')}]
for there, here, other in zip(device, drawn("cpu"), again, strict=True):
    assert there.is_cuda and torch.equal(there.cpu(), here) and torch.equal(there, other)
"""
    run(tmp_path_factory.mktemp("draws"), source)


STATES = """
from torch.utils.checkpoint import checkpoint
torch.manual_seed(1)
torch.randn(7, device="cuda")
state, offset = torch.cuda.get_rng_state(), torch.cuda.default_generators[0].get_offset()
assert state.shape == (16,) and offset == 8
copied = state.clone()
expected = torch.randn(7, device="cuda"), torch.rand(3, device="cuda")
def check(what):
    found = torch.randn(7, device="cuda"), torch.rand(3, device="cuda")
    assert all(map(torch.equal, found, expected)), what
torch.cuda.set_rng_state(state); check("state")
torch.cuda.set_rng_state(copied); check("copy")
torch.cuda.default_generators[0].set_offset(offset); check("offset")
other = torch.Generator("cuda").set_state(copied)
assert torch.equal(torch.randn(7, device="cuda", generator=other), expected[0])
same = other.clone_state()
assert torch.equal(*(torch.rand(3, device="cuda", generator=each) for each in (other, same)))
# The host's numbers go on as if there were no device.
torch.manual_seed(1)
host = torch.randn(7), torch.randn(7), torch.rand(3)
assert torch.equal(host[1], expected[0].cpu()) and torch.equal(host[2], expected[1].cpu())
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
    seen = []
    def layer(x):
        dropped = F.dropout(x, 0.5)
        seen.append(dropped.detach())
        return dropped * dropped
    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    assert torch.equal(*seen)
torch.manual_seed(1)
torch.randn(7, device="cuda")
torch.save(torch.cuda.get_rng_state(), f"{sys.argv[1]}/state.pt")
torch.save([each.cpu() for each in expected], f"{sys.argv[1]}/expected.pt")
"""
RESUMED = """
torch.cuda.set_rng_state(torch.load(f"{sys.argv[1]}/state.pt"))
found = torch.randn(7, device="cuda"), torch.rand(3, device="cuda")
expected = torch.load(f"{sys.argv[1]}/expected.pt")
assert all(torch.equal(each.cpu(), other) for each, other in zip(found, expected, strict=True))
"""


@pytest.mark.adr("0118-D2")
@pytest.mark.adr("0118-D3")
def test_states_lead_back_to_their_numbers(tmp_path: Path) -> None:
    run(tmp_path, STATES)
    run(tmp_path, RESUMED)


@pytest.mark.adr("0118-D3")
def test_ranks_that_drew_differently_draw_alike_for_a_dtensor(tmp_path: Path) -> None:
    source = """
import torch.distributed as dist
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
"""
    run(tmp_path, source, nprocs=2)
