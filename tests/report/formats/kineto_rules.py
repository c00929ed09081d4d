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
    slices = [each for each in events if each["ph"] == "X"]
    info = trace["distributedInfo"]
    assert 0 <= info["rank"] < info["world_size"]
    devices = {each["id"] for each in trace["deviceProperties"]}
    named = {(each["pid"], each["name"]) for each in events if each["ph"] == "M"}
    for each in slices:
        assert each["dur"] >= 0, each
        assert (each["pid"], "process_name") in named
        kind = each["cat"]
        assert kind in DEVICE | HOST | {"gpu_user_annotation"}
        if kind in DEVICE:
            assert each["pid"] == each["args"]["device"] in devices
            assert each["tid"] % 1_000 == each["args"]["stream"] > 0
    annotations = {"user_annotation", "gpu_user_annotation", "cuda_sync"}
    check_slices([each for each in slices if each["cat"] not in annotations])
    check_slices([each for each in slices if each["cat"] in HOST])
    check_correlations(slices, events)
    check_collectives(slices)


def check_correlations(slices: Any, events: Any) -> None:
    """A kernel has one launch, before it; every number stands for one call of the host."""
    calls = {
        each["args"]["correlation"]: each
        for each in slices
        if each["cat"] == "cuda_runtime" and "correlation" in each["args"]
    }
    numbers = Counter(
        each["args"]["correlation"] for each in slices if each["cat"] == "cuda_runtime"
    )
    assert set(numbers.values()) <= {1}
    for each in slices:
        if each["cat"] in DEVICE and "correlation" in each["args"]:
            call = calls[each["args"]["correlation"]]
            assert call["ts"] <= each["ts"] + each["dur"]
            if each["cat"] != "cuda_sync":
                assert call["ts"] <= each["ts"], each
                assert "Launch" in call["name"] or "Async" in call["name"]
    arrows = defaultdict(list)
    for each in events:
        if each["ph"] in "sf":
            arrows[each["id"]].append(each["ph"])
    assert all(phases[0] == "s" and set(phases[1:]) == {"f"} for phases in arrows.values())


def check_collectives(slices: Any) -> None:
    for each in slices:
        if each["name"].startswith("nccl") and each["cat"] == "kernel":
            args = each["args"]
            assert args["Group size"] >= 1
            assert args["Collective name"]
            assert args["Process Group Ranks"].count(",") == args["Group size"] - 1 or (
                args["Group size"] == 1
            )
