"""What a program sees of expandable segments: what fits, statistics, snapshots, and errors.

python expandable_segments.py HOW, of which each leaves 19 GiB of a device of 80 in a split segment
"""

import os
import sys

import pytest
import torch

GIB = 1 << 30
CONTEXT = 500 << 20
"""What the machine says of a process's context."""


def gibibytes(count):
    return torch.empty(int(count * GIB), dtype=torch.uint8, device="cuda")


def by_call():
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")


HOW = {
    "default": (lambda: None, False),
    "variable": (lambda: os.environ.update(PYTORCH_ALLOC_CONF="expandable_segments:True"), True),
    "old_variable": (
        lambda: os.environ.update(
            PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512, expandable_segments:True"
        ),
        True,
    ),
    "call": (by_call, True),
    "off_again": (
        lambda: (by_call(), torch.cuda.memory._set_allocator_settings("expandable_segments:False")),
        False,
    ),
}
ask, is_expandable = HOW[sys.argv[1]]
ask()
torch.cuda.memory._record_memory_history()


def consistent():
    """The numbers of statistics and of a snapshot, which must agree."""
    tensor = torch.cuda.memory._snapshot()
    stats = torch.cuda.memory_stats()
    segments = tensor["segments"]
    reserved = sum(segment["total_size"] for segment in segments)
    used = sum(
        block["size"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    assert reserved == stats["reserved_bytes.all.current"] == torch.cuda.memory_reserved()
    assert used == stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    assert total - free == reserved + CONTEXT
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["is_expandable"] == is_expandable
    assert tensor["allocator_settings"]["expandable_segments"] == is_expandable
    taken = {True: "segment_map", False: "segment_alloc"}[is_expandable]
    value = {True: "segment_unmap", False: "segment_free"}[is_expandable]
    events = tensor["device_traces"][0]
    sums = [sum(e["size"] for e in events if e["action"] == name) for name in (taken, value)]
    assert sums[0] - sums[1] == reserved
    return reserved / GIB


first = gibibytes(40)
assert 40 <= consistent() <= 40.02
del first
kept, other = gibibytes(21), gibibytes(37)
assert 58 <= consistent() <= (58.04 if is_expandable else 77)
if is_expandable:
    last = gibibytes(19.5)
    assert 77.5 <= consistent() <= 77.54
    del last, other
    # The middle goes back to the device, and is taken again where a graph's stream needs it.
    torch.cuda.empty_cache()
    assert 21 <= consistent() <= 21.02
    with torch.cuda.stream(torch.cuda.Stream()):
        assert gibibytes(56).numel() == 56 * GIB
else:
    with pytest.raises(torch.OutOfMemoryError) as raised:
        gibibytes(19.5)
    said = str(raised.value)
    assert "58.00 GiB is allocated by PyTorch, and 19.00 GiB is reserved by PyTorch" in said
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation: together" in said
    with pytest.raises(torch.OutOfMemoryError) as raised:
        gibibytes(60)
    assert "together" not in str(raised.value)
for wrong in ("expandable_segments:yes", "expandable_segment:True", "expandable_segments"):
    with pytest.raises(RuntimeError, match="expandable_segment"):
        torch.cuda.memory._set_allocator_settings(wrong)
