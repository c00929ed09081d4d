"""Simulated processes compute what real ones with gloo do, to the bit in groups of two."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import assert_same_bits, real, results, simulated  # noqa: E402


def folders(parent: Path, *names: str) -> list[Path]:
    made = [parent / name for name in names]
    for each in made:
        each.mkdir()
    return made


@pytest.mark.slow
@pytest.mark.adr("0062-D3")
def test_hand_written_tensor_parallelism_has_the_bits_of_real_processes(tmp_path: Path) -> None:
    ours, theirs = folders(tmp_path, "ours", "theirs")
    simulated("tp_layers.py", ours)
    real("tp_layers.py", theirs)
    found, expected = results(ours), results(theirs)
    assert len(expected) == 2
    assert assert_same_bits(found, expected) == 12


@pytest.mark.slow
@pytest.mark.adr("0062-D3")
def test_training_on_a_mesh_and_from_a_checkpoint_has_the_bits_of_real_processes(
    tmp_path: Path,
) -> None:
    ours, theirs = folders(tmp_path, "cuda", "gloo")
    real("mesh_training.py", theirs, "cpu", "new", nprocs=4)
    simulated("mesh_training.py", ours, "cuda", "new", nprocs=4)
    expected = results(theirs)
    assert len(expected) == 4
    assert assert_same_bits(results(ours), expected) == 4 * 11
    # A checkpoint is one of PyTorch's: either side goes on from what the other has saved.
    theirs.joinpath("checkpoint").rename(tmp_path / "theirs")
    ours.joinpath("checkpoint").rename(theirs / "checkpoint")
    (tmp_path / "theirs").rename(ours / "checkpoint")
    real("mesh_training.py", theirs, "cpu", "resume", nprocs=4)
    simulated("mesh_training.py", ours, "cuda", "resume", nprocs=4)
    resumed = results(theirs, "resumed")
    assert assert_same_bits(results(ours, "resumed"), resumed) == 4 * 11
    assert resumed[0]["losses"][0] < expected[0]["losses"][0]


VERSIONS = """
import sys
import torch, torch.distributed as dist
device, folder = sys.argv[1:]
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank, size = dist.get_rank(), dist.get_world_size()
found = {}

def note(name, collective):
    x = torch.ones(4, device=device, requires_grad=True)
    y = torch.relu(x)
    with torch.no_grad():
        collective(y)
    y.sum().backward()
    found[name] = y._version

def ones(many=4):
    return torch.ones(many, device=device)

note("all_reduce", dist.all_reduce)
note("of a view", lambda y: dist.all_reduce(y[1:3]))
note("broadcast", lambda y: dist.broadcast(y, 0))
note("reduce", lambda y: dist.reduce(y, 0))
note("all_to_all_single", lambda y: dist.all_to_all_single(y, ones()))
note("scatter", lambda y: dist.scatter(y, [ones() for _ in range(size)] if rank == 0 else None))
note("send and recv", lambda y: dist.send(ones(), 1) if rank == 0 else dist.recv(y, 0))
with torch.inference_mode():
    dist.all_reduce(ones())
parts = [ones() for _ in range(size)]
dist.all_gather(parts, ones())
found["all_gather"] = parts[0]._version
torch.save(found, f"{folder}/{device}{rank}.pt")
dist.destroy_process_group()
"""


def test_collectives_write_below_autograd_as_the_backends_do(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(VERSIONS)
    real(path, "cpu", tmp_path, nprocs=2)
    simulated(path, "cuda", tmp_path, nprocs=2)
    assert results(tmp_path, "cuda") == results(tmp_path, "cpu")
    assert set(results(tmp_path, "cuda")[0].values()) == {0, 1}
