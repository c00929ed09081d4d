"""The rules of the files that PyTorch's profiler writes, as their readers have them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from tests.report.trace_rules import check_slices

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"}
HOST = {"cpu_op", "cuda_runtime", "user_annotation"}


def check_kineto(trace: dict[str, Any]) -> None:
    """Check every rule of a file."""
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    info = trace["distributedInfo"]
    assert 0 <= info["rank"] < info["world_size"]
    devices = {item["id"] for item in trace["deviceProperties"]}
    named = {(event["pid"], event["name"]) for event in events if event["ph"] == "M"}
    for item in slices:
        assert item["dur"] >= 0, item
        assert (item["pid"], "process_name") in named
        kind = item["cat"]
        assert kind in DEVICE | HOST | {"gpu_user_annotation"}
        if kind in DEVICE:
            assert item["pid"] == item["args"]["device"] in devices
            assert item["tid"] % 1_000 == item["args"]["stream"] > 0
    annotations = {"user_annotation", "gpu_user_annotation", "cuda_sync"}
    check_slices([entry for entry in slices if entry["cat"] not in annotations])
    check_slices([entry for entry in slices if entry["cat"] in HOST])
    check_correlations(slices, events)
    check_collectives(slices)


def check_correlations(slices: Any, events: Any) -> None:
    """A kernel has one launch, before it; every number stands for one call of the host."""
    calls = {
        item["args"]["correlation"]: item
        for item in slices
        if item["cat"] == "cuda_runtime" and "correlation" in item["args"]
    }
    numbers = Counter(
        item["args"]["correlation"] for item in slices if item["cat"] == "cuda_runtime"
    )
    assert set(numbers.values()) <= {1}
    for item in slices:
        if item["cat"] in DEVICE and "correlation" in item["args"]:
            call = calls[item["args"]["correlation"]]
            assert call["ts"] <= item["ts"] + item["dur"]
            if item["cat"] != "cuda_sync":
                assert call["ts"] <= item["ts"], item
                assert "Launch" in call["name"] or "Async" in call["name"]
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event["ph"])
    assert all(phases[0] == "s" and set(phases[1:]) == {"f"} for phases in arrows.values())


def check_collectives(slices: Any) -> None:
    for item in slices:
        if item["name"].startswith("nccl") and item["cat"] == "kernel":
            args = item["args"]
            assert args["Group size"] >= 1
            assert args["Collective name"]
            assert args["Process Group Ranks"].count(",") == args["Group size"] - 1 or (
                args["Group size"] == 1
            )
