"""Programs on several nodes: a rank's device is that of its node, whatever its rank (ADR-0062)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge import run_torchrun  # noqa: E402
from tests.tiers import daily  # noqa: E402

PER_NODE = 8
SHOWN = """
import json, os, platform, socket, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
mesh = init_device_mesh("cuda", (dist.get_world_size() // torch.cuda.device_count(),
                                 torch.cuda.device_count()), mesh_dim_names=("dp", "tp"))
x = torch.full((2,), float(rank), device="cuda")
whole, in_node, across = x.clone(), x.clone(), x.clone()
dist.all_reduce(whole)
dist.all_reduce(in_node, group=mesh.get_group("tp"))
dist.all_reduce(across, group=mesh.get_group("dp"))
stream = torch.cuda.Stream()
names = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR")
found = {
    "devices": sorted({str(each) for each in (x.device, whole.device, stream.device)}),
    "current": torch.cuda.current_device(),
    "count": torch.cuda.device_count(),
    "sums": [each[0].item() for each in (whole, in_node, across)],
    "host": sorted({socket.gethostname(), platform.node(), os.uname().nodename}),
    "allocated": torch.cuda.memory_allocated() > 0,
    "environ": [os.environ[each] for each in names],
}
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(found, file)
"""


def run(program: str, folder: Path, machine: str, nprocs: int, num_nodes: int) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text(program)
    context = RuntimeContext(machine=machine)
    code = compile(program, str(path), "exec")
    with context:
        argv = [str(path), str(folder)]
        run_torchrun(context, path, code, argv, nprocs, num_nodes=num_nodes)
    return context


@pytest.mark.adr("0062-D5")
@pytest.mark.adr("0062-D6")
@pytest.mark.parametrize("nodes", daily(17, of=(17, 33)))
def test_every_rank_of_many_nodes_has_the_devices_and_names_of_its_own(
    tmp_path: Path, nodes: int
) -> None:
    """Rank 128 would be cuda:-128, and rank 256 cuda:0, if a device had its rank's number."""
    context = run(SHOWN, tmp_path, f"h100-sxm:{nodes}x{PER_NODE}", PER_NODE, nodes)
    size = nodes * PER_NODE
    sips = set()
    for rank in range(size):
        node, local = divmod(rank, PER_NODE)
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "devices": [f"cuda:{local}"],
            "current": local,
            "count": PER_NODE,
            "sums": [
                sum(range(size)),
                sum(range(node * PER_NODE, (node + 1) * PER_NODE)),
                sum(range(local, size, PER_NODE)),
            ],
            "host": [f"node{node}"],
            "allocated": True,
            "environ": [str(PER_NODE), str(size), str(node), str(node), "node0"],
        }
    for instance in context.run.op_log.instances:
        sips |= set(zip(instance.ranks, instance.sips, strict=True))
    assert sips == {(rank, rank) for rank in range(size)}, "the simulated device is by rank"


@pytest.mark.adr("0062-D7")
@pytest.mark.parametrize(
    ("machine", "nprocs", "num_nodes", "message"),
    [
        ("h100-sxm:2x8", 4, 2, "4 ranks per node do not fill the nodes .* which have 8 devices"),
        ("h100-sxm:2x8", 9, 2, "9 ranks per node do not fill .* take --nproc-per-node 8$"),
        ("h100-sxm:2x8", 8, 3, "3 asks for more nodes than the 2 of machine h100-sxm"),
        ("h100-sxm:2x8", 16, 1, "16 processes on one node, but nodes .* have 8 devices"),
    ],
)
def test_ranks_that_do_not_fill_nodes_are_refused(
    machine: str, nprocs: int, num_nodes: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        run("raise AssertionError('it ran')", tmp_path, machine, nprocs, num_nodes)


@pytest.mark.adr("0062-D7")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("torch.ones(1, device='cuda:8')", "each node of machine h100-sxm has 8 devices"),
        ("torch.cuda.set_device(9)", "a rank's device is its LOCAL_RANK, not its RANK"),
        ("torch.multiprocessing.spawn(print, nprocs=9)", "9 processes on one node"),
    ],
)
def test_devices_of_other_nodes_are_refused(line: str, message: str, tmp_path: Path) -> None:
    program = f"import torch\nif __name__ == '__main__':\n    {line}\n"
    with pytest.raises(UsageError, match=message):
        run(program, tmp_path, "h100-sxm:2x8", 1, 1)
