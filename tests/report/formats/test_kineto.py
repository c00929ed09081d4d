"""Files as PyTorch's profiler writes them: their rules, and what Holistic Trace Analysis finds."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernbench import RuntimeContext, ops
from kernbench.analysis import critical_path
from kernbench.errors import OutputError, UsageError
from kernbench.hardware import load_machine
from kernbench.op_log import HostRange, OpLog, covered_ps
from kernbench.report import write_profiles
from tests.logs import LogBuilder, kernel, ring, small_log
from tests.report.formats.kineto_rules import check_kineto

MACHINE = load_machine("ahbm:4")


def read(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    check_kineto(trace)
    return trace


def written(log: OpLog, folder: Path) -> list[dict[str, Any]]:
    return [read(path) for path in write_profiles(log, MACHINE, 4, folder)]


def of_kind(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    result = [item for item in trace["traceEvents"] if item.get("cat") == kind]
    return sorted(result, key=lambda item: item["ts"])


@pytest.mark.adr("0010-D9")
def test_each_rank_has_its_operations_launches_kernels_and_collectives(tmp_path: Path) -> None:
    log = small_log()
    log.host_ranges.append(HostRange(0, "ProfilerStep#3", 0, 1_800_000))
    traces = written(log, tmp_path)
    assert [trace["distributedInfo"]["rank"] for trace in traces] == [0, 1]
    names = [item["name"] for item in of_kind(traces[0], "kernel")]
    assert names == ["matmul", "ncclDevKernel_AllGather_RING", "gelu"]
    for kind in ("cpu_op", "cuda_runtime"):
        assert len(of_kind(traces[1], kind)) == 2
    launch, product = (of_kind(traces[0], kind)[0] for kind in ("cuda_runtime", "kernel"))
    assert launch["name"] == "cudaLaunchKernel"
    assert launch["args"]["correlation"] == product["args"]["correlation"]
    assert (product["ts"], product["dur"]) == (0.5, 1.0)
    (gathered,) = (item["args"] for item in of_kind(traces[1], "kernel") if "nccl" in item["name"])
    assert gathered["Collective name"] == "_allgather_base"
    assert (gathered["Group size"], gathered["bytes"]) == (2, 1024)
    assert gathered["Process Group Ranks"] == "[0, 1]"
    (step,) = of_kind(traces[0], "user_annotation")
    assert step["name"] == "ProfilerStep#3"
    (on_device,) = of_kind(traces[0], "gpu_user_annotation")
    assert (on_device["ts"], on_device["dur"]) == (0.5, 1.3)


def test_kernels_name_grid_block_and_what_they_were_given(tmp_path: Path) -> None:
    builder = LogBuilder()
    value = {"grid": [4, 2, 1], "num_warps": 8, "arguments": {"n": 250}}
    builder.launch(kernel(launched_with=value), 0, 500_000)
    operation = {"shapes": [[4, 8], [8]], "dtypes": ["float32", "int64"]}
    builder.launch(kernel("aten.add", launched_with=operation), 0, 2_500_000)
    (trace,) = written(builder.log, tmp_path)
    args = of_kind(trace, "kernel")[0]["args"]
    assert (args["grid"], args["block"]) == ([4, 2, 1], [8 * 32, 1, 1])
    assert args["arguments"] == {"n": 250}
    called = of_kind(trace, "cpu_op")[1]
    assert called["name"] == "aten::add"
    assert called["args"]["Input Dims"] == [[4, 8], [8]]
    assert called["args"]["Input type"] == ["float", "long int"]


def test_what_overlaps_on_a_stream_is_drawn_beside_it(tmp_path: Path) -> None:
    builder = LogBuilder()
    for starts in ((0, 0), (50_000, 50_000)):
        builder.collective(ring(2), (0, 1), starts)
    (first, second) = of_kind(written(builder.log, tmp_path)[0], "kernel")
    assert second["ts"] < first["ts"] + first["dur"]
    assert second["tid"] == first["tid"] + 1_000
    assert second["args"]["stream"] == first["args"]["stream"]


def test_equal_runs_are_equal_bytes_and_bad_folders_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_profiles(small_log(), MACHINE, 4, tmp_path / name)
    one, other = ((tmp_path / name / "rank1.pt.trace.json.gz").read_bytes() for name in ("a", "b"))
    assert one == other
    write_profiles(small_log(), MACHINE, 4, tmp_path / "a")  # once more, over the same files
    (tmp_path / "a" / "rank7.pt.trace.json.gz").write_bytes(one)
    with pytest.raises(OutputError, match=r"holds rank7\.pt\.trace\.json\.gz of another run"):
        write_profiles(small_log(), MACHINE, 4, tmp_path / "a")
    with pytest.raises(OutputError, match="is a file; name a folder"):
        write_profiles(small_log(), MACHINE, 4, tmp_path / "a" / "rank7.pt.trace.json.gz")
    with pytest.raises(UsageError, match="has launched nothing"):
        write_profiles(OpLog(), MACHINE, 4, tmp_path / "none")


ANALYSIS = """
import json, logging, sys
from hta.trace_analysis import TraceAnalysis

def rows(frame):
    return frame.to_dict("records")

def path_of(found, rank):
    graph, is_found = found.critical_path_analysis(rank=rank, annotation="", instance_id=0)
    assert is_found
    return rows(graph.get_critical_path_breakdown()[["s_name", "duration", "type", "stream"]])

def analysed(folder):
    found = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
    _, kernels = found.get_gpu_kernel_breakdown(visualize=False, num_kernels=99)
    return {
        "temporal": rows(found.get_temporal_breakdown(visualize=False)),
        "kernels": rows(kernels),
        "overlap": rows(found.get_comm_comp_overlap(visualize=False)),
        "idle": rows(found.get_idle_time_breakdown(ranks=[0], visualize=False)[0]),
        "paths": [path_of(found, rank) for rank in found.t.traces],
    }

logging.disable(logging.CRITICAL)
print(json.dumps([analysed(folder) for folder in sys.argv[1:]], default=float))
"""


def analysed(*folders: Path) -> list[dict[str, Any]]:
    # HTA rounds times to whole microseconds unless told not to.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ANALYSIS, *map(str, folders)],
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return data


def one_rank() -> RuntimeContext:
    with RuntimeContext(machine="ahbm:1") as torch:
        small, large = torch.ones(64, 64), torch.ones(2048, 2048, dtype="f16")
        for _ in range(3):
            for _ in range(4):
                ops.gelu(small)  # bound by launches
            x = large @ large
            ops.gelu(x)  # waits for the product
            torch.ahbm.synchronize()
    return torch


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[OpLog, dict[str, Any]]]:
    """The logs of two programs, and what HTA finds in their files: once, as HTA starts slowly."""
    pytest.importorskip("hta", reason="needs HolisticTraceAnalysis, which make test installs")
    pytest.importorskip("torch")
    from tests.torch_bridge.running import simulated

    folder = tmp_path_factory.mktemp("hta")
    contexts = [simulated("overlapping.py", folder, nprocs=2), one_rank()]
    folders = []
    for context in contexts:
        folders.append(folder / f"{context.world_size} ranks")
        for path in write_profiles(
            context.op_log, context.machine, context.world_size, folders[-1]
        ):
            read(path)
    logs = [context.op_log for context in contexts]
    return list(zip(logs, analysed(*folders), strict=True))


def intervals(log: OpLog, rank: int, kinds: set[str]) -> tuple[Any, Any]:
    times = [
        (instance.starts_ps[position], instance.ends_ps[position])
        for instance in log.instances
        for position, mine in enumerate(instance.ranks)
        if mine == rank and instance.template.kind in kinds
    ]
    starts, ends = np.array(times, dtype=np.int64).reshape(-1, 2).T
    return starts, ends


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0010-D9")
def test_holistic_trace_analysis_finds_the_times_of_the_log(
    analyses: list[tuple[OpLog, dict[str, Any]]],
) -> None:
    log, result = analyses[0]
    everything = {"kernel", "collective", "copy", "fill"}
    for rank, parts in enumerate(result["temporal"]):
        starts, ends = intervals(log, rank, everything)
        # Each event is rounded down to a nanosecond.
        near = 0.001 * 2 * len(starts)
        span_ps = int(ends.max() - starts.min())
        assert parts["kernel_time(us)"] == pytest.approx(span_ps / 1e6, abs=near)
        idle_ps = span_ps - covered_ps(starts, ends)
        assert parts["idle_time(us)"] == pytest.approx(idle_ps / 1e6, abs=near)
        computing, talking = (intervals(log, rank, {kind}) for kind in ("kernel", "collective"))
        busy_ps = covered_ps(*computing)
        assert parts["compute_time(us)"] == pytest.approx(busy_ps / 1e6, abs=near)
        talked_ps = covered_ps(*talking)
        either = (np.concatenate(pair) for pair in zip(computing, talking, strict=True))
        both_ps = busy_ps + talked_ps - covered_ps(*either)
        (overlap,) = (
            item["comp_comm_overlap_pctg"] for item in result["overlap"] if item["rank"] == rank
        )
        assert 20 < overlap < 99
        assert overlap == pytest.approx(100 * both_ps / talked_ps, abs=0.5)
    times: defaultdict[tuple[int, str], int] = defaultdict(int)
    for instance in log.instances:
        for position, rank in enumerate(instance.ranks):
            ps = instance.ends_ps[position] - instance.starts_ps[position]
            times[rank, instance.template.name] += ps
    shown = {(item["rank"], item["name"]): item["sum (us)"] for item in result["kernels"]}
    for name in ("aten.mm", "aten.relu"):
        for rank in range(2):
            assert shown[rank, name] == pytest.approx(times[rank, name] / 1e6, abs=0.05)
    assert any(name.startswith("ncclDevKernel_AllReduce") for _, name in shown)
    assert {item["idle_category"] for item in result["idle"]} >= {"host_wait"}


@pytest.mark.campaign
@pytest.mark.slow
def test_its_critical_path_has_the_kernels_of_ours(
    analyses: list[tuple[OpLog, dict[str, Any]]],
) -> None:
    log, result = analyses[1]
    (path,) = result["paths"]
    theirs = Counter(
        item["s_name"]
        for item in path
        if item["type"] == "critical_path_operator" and item["stream"] > 0
    )
    ours = critical_path(log)
    # HTA takes it that a kernel waited for the one before it if its launch had begun when that
    # ended: instead of launches it may have kernels that take as long.
    shown = Counter(item.name.replace("fill", "Memset (Device)") for item in ours if item.launch)
    assert shown["matmul"] == theirs["matmul"] == 3
    assert not shown - theirs
    total_us = sum(item["duration"] for item in path)
    assert total_us == pytest.approx(sum(item.duration_ps for item in ours) / 1e6, rel=0.02)
