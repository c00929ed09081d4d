"""torch.distributed on the links of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.runtime_api import RuntimeContext, SpawnException  # noqa: E402
from tests.tiers import daily, of_campaigns  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


@pytest.mark.adr("0062-D1")
def test_groups_and_backends_keep_their_names(tmp_path: Path) -> None:
    simulated("distributed.py", "names", tmp_path, nprocs=4)
    said = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank*.json"))]
    assert len(said) == 4
    for rank, item in enumerate(said):
        assert item == {
            "backend": "nccl",
            "gloo": "gloo",
            "inside": rank if rank < 2 else -1,
            "row": [rank // 2 * 2, rank // 2 * 2 + 1],
            "column": [rank % 2, rank % 2 + 2],
        }


@pytest.mark.parametrize(
    "name",
    daily(
        "nccl",
        "MCCL",
        "cpu:gloo,cuda:rcclx",
        of=("nccl", "ncclx", "MCCL", "dummy", "cuda:ncclx,cpu:gloo", "cpu:gloo,cuda:rcclx"),
    ),
)
def test_back_ends_of_torchcomms_run_as_nccl_and_the_report_says_so(name: str) -> None:
    run = simulated("back_ends.py", name, nprocs=2)
    said = [line for remark in run.run.remarks for line in remark() if "torchcomms" in line]
    own = [item for item in ("ncclx", "mccl", "dummy", "rcclx") if item in name.lower()]
    assert [line.rpartition(": ")[2] for line in said] == own
    (first, *_) = run.op_log.instances
    nccl = simulated("back_ends.py", "nccl", nprocs=2)
    assert first.template.duration_ps == nccl.op_log.instances[0].template.duration_ps


def test_an_unknown_back_end_is_refused_with_names_that_are_like_it() -> None:
    with pytest.raises(SpawnException) as raised:
        simulated("back_ends.py", "cuda:nccx", nprocs=2)
    assert all(isinstance(exception, UsageError) for exception in raised.value.exceptions)
    assert "no back end 'nccx'" in str(raised.value.exceptions[0])
    assert "did you mean ncclx or" in str(raised.value.exceptions[0])


@pytest.mark.adr("0062-D2")
def test_an_all_reduce_takes_what_the_runtimes_own_takes() -> None:
    context = simulated("distributed.py", "all_reduce", nprocs=4)
    (result,) = context.op_log.instances

    with RuntimeContext(machine=context.machine, ranks=4) as kernbench:

        def worker(rank: int) -> None:
            kernbench.distributed.init_process_group()
            kernbench.distributed.all_reduce(kernbench.empty(1 << 16))

        kernbench.multiprocessing.spawn(worker, nprocs=4)
    (expected,) = kernbench.op_log.instances
    assert result.template.algorithm == expected.template.algorithm
    assert max(result.ends_ps) - max(result.starts_ps) == max(expected.ends_ps) - max(
        expected.starts_ps
    )
    assert result.starts_ps == (context.machine.sip.host_launch_ps,) * 4


@pytest.mark.adr("0062-D2")
def test_waiting_for_device_tensors_holds_the_stream_up_and_not_the_host() -> None:
    context = simulated("distributed.py", "wait", nprocs=2)
    by_end = sorted(context.op_log.instances, key=lambda item: item.ends_ps)
    collective, *adds = by_end[2:]
    assert collective.template.name == "all_reduce"
    assert all(entry.starts_ps[0] >= max(collective.ends_ps) for entry in adds)
    assert not [span for span in context.op_log.host_spans if span.kind == "wait"]


BY_PEERS = ["one_shot", "one_shot", "two_shot", "", "one_shot", "", "", "one_shot"]
"""Of the program's all-reduces: PyTorch takes one shot up to 256 KiB, two up to 10 MiB, for sums
of float32 and bfloat16 (intra_node_comm.cu)."""


def by_peers(
    asked: str, machine: str, num_nodes: int = 1, buffers: int = 0
) -> tuple[list[str], int]:
    """Return by which algorithms all-reduces of four ranks went, and how many copies there were."""
    context = simulated(
        "distributed.py",
        "by_peers",
        asked,
        buffers,
        nprocs=4 // num_nodes,
        machine=machine,
        num_nodes=num_nodes,
    )
    log = context.op_log
    reduced = [instance for instance in log.instances if instance.template.name == "all_reduce"]
    reduced.sort(key=lambda item: item.starts_ps)
    taken = [entry.template.algorithm.partition("/")[0] for entry in reduced]
    return taken, sum(instance.template.name == "aten.copy_" for instance in log.instances)


def test_a_variable_asks_for_all_reduces_by_kernels_of_pytorch() -> None:
    taken, copies = by_peers("1", "a100-sxm-80g:4", buffers=1)
    left, none = by_peers("0", "a100-sxm-80g:4")
    assert taken == [kernel or other for kernel, other in zip(BY_PEERS, left, strict=True)]
    assert not any("shot" in item for item in left)
    # Into the buffer, and out of it after two shots; C++ makes the last tensor itself.
    assert (copies, none) == (4 * (4 + 1), 0)


@pytest.mark.parametrize(
    ("machine", "num_nodes", "buffers"),
    [
        ("l40s:4", 1, 0),
        of_campaigns("v100:4", 1, 0),
        of_campaigns("mi300x:4", 1, 0),
        ("h100-sxm:2x2", 2, 1),
    ],
    ids=["over-pcie", "an-older-gpu", "not-cuda", "two-nodes"],
)
def test_devices_that_do_not_see_each_others_memory_reduce_as_they_do_without(
    machine: str, num_nodes: int, buffers: int
) -> None:
    without = by_peers("0", machine, num_nodes)
    assert by_peers("1", machine, num_nodes, buffers) == without


def test_a_barrier_and_host_tensors_block_the_host() -> None:
    context = simulated("distributed.py", "on_the_host", nprocs=2)
    waits = [span for span in context.op_log.host_spans if span.kind == "wait"]
    assert sorted((span.rank, span.label) for span in waits) == [
        (0, "all_reduce"),
        (0, "barrier"),
        (1, "all_reduce"),
        (1, "barrier"),
    ]


def test_a_group_that_a_program_left_is_not_there_for_the_next_one(tmp_path: Path) -> None:
    program = tmp_path / "leaves_its_group.py"
    program.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl', 'tcp://localhost:2333', world_size=1, rank=0)\n"
        "assert dist.is_initialized()\n"
    )
    for _ in range(2):
        simulated(program)


def test_reduce_scatter_takes_parts_of_several_lengths() -> None:
    simulated("uneven_reduce_scatter.py", nprocs=4)
