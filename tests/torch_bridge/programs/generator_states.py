"""Generators that share states draw the same in replays of a graph as they drew outside of it.

python generator_states.py FOLDER saves what was drawn outside (expected.pt) and by each replay
(found.pt); in a run without data the numbers mean nothing.
"""

import sys
from pathlib import Path

import torch

FOLDER = Path(sys.argv[1])

default = torch.cuda.default_generators[0]
assert default is torch.cuda.default_generators[0]
assert isinstance(default, torch.Generator)
torch.cuda.manual_seed(3)
apart = default.clone_state().manual_seed(7)
shared = default.graphsafe_get_state()
assert isinstance(apart, torch.Generator)
assert apart.initial_seed() == 7


def forked() -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the state apart, and then from the default one."""
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(apart)
    inside = torch.randn(5, device="cuda")
    default.graphsafe_set_state(before)
    return inside, torch.randn(6, device="cuda")


expected = [forked() for _ in range(3)]
assert apart.get_offset() == 3 * 8 == shared.get_offset()
apart.manual_seed(7)
torch.cuda.manual_seed(3)
assert torch.equal(shared.get_state(), torch.cuda.get_rng_state())
assert shared.get_offset() == 0
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    drawn = forked()
assert apart.get_offset() == shared.get_offset() == 0
result = []
for step in range(1, 4):
    graph.replay()
    assert apart.get_offset() == shared.get_offset() == step * 8
    result.append([item.clone() for item in drawn])
assert apart.get_offset() == shared.get_offset() == default.get_offset() == 3 * 8
again = torch.Generator(device="cuda").set_state(apart.get_state())
assert torch.equal(*(torch.rand(4, device="cuda", generator=item) for item in (again, apart)))
torch.cuda.set_rng_state(apart.get_state())
assert shared.initial_seed() == 7
assert again.set_offset(0).get_offset() == 0
for name, pairs in (("expected", expected), ("found", result)):
    torch.save([[item.cpu() for item in pair] for pair in pairs], FOLDER / f"{name}.pt")
