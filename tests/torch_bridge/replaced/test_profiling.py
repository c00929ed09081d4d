"""``torch.profiler`` and named ranges say what the timeline says."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.report.formats.kineto_rules import check_kineto  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


@pytest.mark.slow
@pytest.mark.adr("0077-D2")
def test_a_profile_is_what_the_op_log_says_of_the_rank(tmp_path: Path) -> None:
    context = simulated("profiles.py", tmp_path, nprocs=2)
    for rank in range(2):
        result, collectives, table = json.loads((tmp_path / f"{rank}.found").read_text())
        products = [
            instance
            for instance in context.op_log.instances
            if instance.template.name == "aten.mm" and instance.ranks == (rank,)
        ][1:]
        assert len(products) == rank + 1
        assert result["aten.mm"][0] == result["aten::mm"][0] == rank + 1
        assert result["aten::mm"][3] == sum(product.template.flops for product in products)
        time_us = sum(product.ends_ps[0] - product.starts_ps[0] for product in products) / 1e6
        assert result["aten.mm"][1] == pytest.approx(time_us)
        assert result["aten::mm"][2] == pytest.approx(time_us)
        assert result["my step"][2] >= result["aten::mm"][2]
        assert collectives == 2  # one launched by the host, one on the device
        assert result["marked"][0] == 1
        assert "Self CUDA time total" in table
        named = {
            host_range.name for host_range in context.op_log.host_ranges if host_range.rank == rank
        }
        assert named >= {"my step", "marked"}
        trace = json.loads((tmp_path / f"{rank}.json").read_text())
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["my key"] == [1, 2]
        check_kineto(trace)
        kinds = Counter((item.get("cat"), item["name"]) for item in trace["traceEvents"])
        assert kinds["kernel", "aten.mm"] == kinds["cpu_op", "aten::mm"] == rank + 1
        assert kinds["user_annotation", "my step"] == 1
        assert kinds["gpu_user_annotation", "my step"] == 2  # on two streams
        assert kinds["user_annotation", "ProfilerStep#0"] == 0
        (collective,) = (
            item for item in trace["traceEvents"] if item["name"].startswith("ncclDevKernel_")
        )
        assert collective["args"]["Collective name"] == "allreduce"
        assert collective["args"]["In msg nelems"] == 64 * 64
        (shown,) = (item["args"] for item in trace["traceEvents"] if item["name"] == "aten::add")
        assert shown["Input Dims"] == [[64, 64], [64, 64]]
        folder = tmp_path / f"board{rank}"
        boards = [json.loads(gzip.decompress(path.read_bytes())) for path in folder.iterdir()]
        assert len(boards) == 2
        for board in boards:
            check_kineto(board)
            steps = [
                item["name"]
                for item in board["traceEvents"]
                if item.get("cat") == "user_annotation"
            ]
            assert len(steps) == 2
            assert all(name.startswith("ProfilerStep#") for name in steps)
        waits = json.loads((tmp_path / f"{rank}.waits.json").read_text())
        check_kineto(waits)
        # The second is that of the profile's end.
        waited = [item["tid"] for item in waits["traceEvents"] if item.get("cat") == "cuda_sync"]
        (added,) = (item["tid"] for item in waits["traceEvents"] if item.get("cat") == "kernel")
        assert len(waited) == 2
        assert waited[0] != waited[1] == added
