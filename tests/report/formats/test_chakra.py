"""Chakra's execution traces: run again by their dependencies alone they end when the run did."""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernbench import RuntimeContext, ops
from kernbench.errors import OutputError, UsageError
from kernbench.hardware import load_machine
from kernbench.op_log import OpLog
from kernbench.report import write_execution_traces
from tests.logs import LogBuilder, ring, small_log
from tests.report.formats.chakra_traces import (
    COLLECTIVE,
    COMP,
    RECV,
    SEND,
    ReadTrace,
    read_trace,
    run_again,
)

MACHINE = load_machine("ahbm:4")


def work(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    pairs = [torch.distributed.new_group([first, first + 1]) for first in (0, 2)]
    side = torch.ahbm.Stream()
    x = torch.ones(256, 256, dtype="f16")
    for _ in range(1 + rank):
        x = x @ x
    with torch.ahbm.stream(side):
        side.wait_stream(torch.ahbm.default_stream())
        y = ops.gelu(x)
    torch.distributed.all_reduce(x @ x)
    torch.ahbm.default_stream().wait_stream(side)
    torch.distributed.all_reduce(y, group=pairs[rank // 2])
    out = torch.empty(4 * 256, 256, dtype="f16")
    torch.distributed.all_gather_into_tensor(out, x)
    if rank == 3:
        torch.distributed.send(x, 1)
    if rank == 1:
        torch.distributed.recv(y, 3)
    (y @ x).numpy()


@cache
def example() -> RuntimeContext:
    with RuntimeContext(machine=MACHINE, ranks=4) as torch:
        torch.multiprocessing.spawn(work, (torch,), nprocs=4)
    return torch


def written(log: OpLog, folder: Path) -> dict[int, ReadTrace]:
    paths = write_execution_traces(log, MACHINE, 4, folder)
    return {int(path.name.split(".")[1]): read_trace(path) for path in paths}


@pytest.mark.adr("0010-D10")
def test_a_trace_run_again_ends_when_the_run_did(tmp_path: Path) -> None:
    log = example().op_log
    traces = written(log, tmp_path)
    ends = run_again(traces)
    for rank, trace in traces.items():
        assert trace.about == {"rank": rank, "world_size": 4}
        logged = {
            instance.template.name: instance.ends_ps[instance.ranks.index(rank)]
            for instance in log.instances
            if rank in instance.ranks
        }
        commands = [node for node in trace.nodes if not node.attributes["is_cpu_op"]]
        assert len(commands) == sum(rank in instance.ranks for instance in log.instances)
        again = {node.name: ends[rank][node.number] for node in commands}
        assert again == logged
        hosts = [span.end_ps for span in log.host_spans if span.rank == rank]
        assert max(ends[rank].values()) == max(*hosts, *logged.values())


def test_communication_names_what_chakra_has_names_for(tmp_path: Path) -> None:
    traces = written(example().op_log, tmp_path)
    kinds = {rank: [node.kind for node in trace.nodes] for rank, trace in traces.items()}
    assert [(SEND in kinds[rank], RECV in kinds[rank]) for rank in range(4)] == [
        *((False, False), (False, True), (False, False), (True, False)),
    ]
    (sent,) = (node for node in traces[3].nodes if node.kind == SEND)
    size = 256 * 256 * 2
    assert (sent.attributes["comm_src"], sent.attributes["comm_dst"]) == (3, 1)
    assert sent.attributes["comm_size"] == size
    collectives = [node for node in traces[2].nodes if node.kind == COLLECTIVE]
    shown = [(node.attributes["comm_type"], node.attributes["comm_size"]) for node in collectives]
    # ALL_REDUCE, ALL_REDUCE and ALL_GATHER, each with what a rank gives.
    assert shown == [(0, size), (0, size), (2, size)]
    members = json.loads((tmp_path / "comm_groups.json").read_text())
    names = [node.attributes["pg_name"] for node in collectives]
    assert [members[name] for name in names] == [[0, 1, 2, 3], [2, 3], [0, 1, 2, 3]]


def test_kernels_have_their_work_and_whole_microseconds(tmp_path: Path) -> None:
    log = small_log()
    traces = written(log, tmp_path)
    product = next(node for node in traces[0].nodes if node.name == "matmul")
    assert (product.kind, product.start_us, product.duration_us) == (COMP, 1, 1)
    assert (product.attributes["num_ops"], product.attributes["tensor_size"]) == (6_000, 4_000)
    assert product.attributes["duration_ps"] == 1_000_000


def test_chakras_own_reader_reads_them(tmp_path: Path) -> None:
    jsonizer: Any = pytest.importorskip(
        "chakra.src.jsonizer.jsonizer", reason="needs Chakra, which no package index has"
    )
    write_execution_traces(example().op_log, MACHINE, 4, tmp_path)
    out = tmp_path / "read.json"
    value = ["", "--input_filename", str(tmp_path / "run.1.et"), "--output_filename", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", value)
        jsonizer.main()
    text = out.read_text()
    nodes = read_trace(tmp_path / "run.1.et").nodes
    assert text.count('"durationMicros"') == sum(node.duration_us > 0 for node in nodes)
    assert text.count('"COMM_COLL_NODE"') == 3
    assert text.count('"COMM_RECV_NODE"') == 1


def test_a_file_for_a_folder_and_ranks_of_another_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file; name a folder"):
        write_execution_traces(small_log(), MACHINE, 4, tmp_path / "file")
    write_execution_traces(example().op_log, MACHINE, 4, tmp_path / "out")
    with pytest.raises(OutputError, match=r"holds run\.2\.et of another run"):
        write_execution_traces(small_log(), MACHINE, 4, tmp_path / "out")
    with pytest.raises(UsageError, match="has launched nothing"):
        write_execution_traces(OpLog(), MACHINE, 4, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_what_chakra_has_no_node_for_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.collective(dataclasses.replace(ring(2), name="permute"), (0, 1), (0, 0))
    with pytest.raises(UsageError, match="Chakra has no permute"):
        write_execution_traces(builder.log, MACHINE, 2, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))
