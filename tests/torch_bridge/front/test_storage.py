"""Checkpoints take the time of the machine's storage, which nodes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench import RuntimeContext  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from kernbench.torch_bridge import run_torchrun  # noqa: E402

MIB = 1 << 20
PROGRAM = f"""
import io, os, sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones({MIB // 4}, device="cuda")
dist.barrier(device_ids=[int(os.environ["LOCAL_RANK"])])
torch.save(x, io.BytesIO())
torch.save(x, f"{{sys.argv[1]}}/{{rank}}.pt")
with open(f"{{sys.argv[1]}}/{{rank}}.stream", "wb") as out:
    torch.save(x, out)
torch.load(f"{{sys.argv[1]}}/{{rank}}.pt", weights_only=False)
"""


def run(folder: Path, storage: str, scenario: str = "{}", *, data: bool = True) -> Any:
    """Run 4 ranks on 2 nodes whose storage moves MiB per second."""
    machine, program = folder / "nodes.yaml", folder / "program.py"
    machine.write_text(
        f"name: nodes\nbase: h100-sxm\nsizes: [4]\nhost: null\nstorage: {storage}\n"
        f"scenario: {scenario}\nlinks: {{scale_out: {{sips_per_node: 2, topology: switch, "
        "bandwidth_gbps: 50, latency_ns: 5000}}\n"
    )
    program.write_text(PROGRAM)
    context = RuntimeContext(f"{machine}:2x2", 4, data=data, check=False)
    code = compile(PROGRAM, str(program), "exec")
    with context:
        run_torchrun(context, program, code, [str(program), str(folder)], 2, num_nodes=2)
    return context


def spans(context: Any) -> list[tuple[str, float]]:
    """Return the labels and the ends of what storage took, in seconds."""
    host_spans = [
        host_span for host_span in context.op_log.host_spans if host_span.kind == "storage"
    ]
    return sorted((item.label, item.end_ps / 10**12) for item in host_spans)


@pytest.mark.adr("0176-D8")
@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(
    ("storage", "of_four"),
    [
        # Two ranks of a node, one after the other; the file system has room for all.
        ("{node_gbps: 0.001048576, filesystem_gbps: 1}", [1, 1, 2, 2]),
        # Nodes have room, and the file system serves all four.
        ("{node_gbps: 1, filesystem_gbps: 0.001048576}", [1, 2, 3, 4]),
        ("{node_gbps: 1, filesystem_gbps: 1, latency_ms: 250}", [0.25] * 4),
    ],
)
def test_ranks_share_their_node_and_the_file_system(
    storage: str, of_four: list[float], data: bool, tmp_path: Path
) -> None:
    result = spans(run(tmp_path, storage, data=data))
    assert [label for label, _ in result] == ["torch.load"] * 4 + ["torch.save"] * 8
    first = sorted(end for label, end in result if label == "torch.save")[:4]
    # A file has some bytes more than its tensor.
    assert first == pytest.approx(of_four, rel=0.03)
    # Each moves three files: no server is ever idle.
    assert max(end for _, end in result) == pytest.approx(3 * max(of_four), rel=0.03)


@pytest.mark.adr("0176-D8")
def test_a_rank_that_dies_as_it_writes_leaves_half_a_file(tmp_path: Path) -> None:
    storage = "{node_gbps: 0.001048576, filesystem_gbps: 1}"
    with pytest.raises(SpawnException):
        run(tmp_path, storage, "{deaths: [{rank: 0, at_s: 0.5}]}")
    assert 0 < (tmp_path / "0.pt").stat().st_size < MIB
    assert not (tmp_path / "0.stream").exists()


def test_a_machine_without_storage_takes_no_time_for_files(tmp_path: Path) -> None:
    assert spans(run(tmp_path, "null")) == []
