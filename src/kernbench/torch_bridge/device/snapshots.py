"""``torch.cuda.memory._record_memory_history`` and ``_snapshot``, in PyTorch's own format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.errors import UsageError
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.memory import MemoryBlock
from kernbench.torch_bridge.placement.memory_history import (
    History,
    address_of,
    pool_of,
    shown,
    stream_of,
)
from kernbench.torch_bridge.placement.process_memory import ProcessMemory
from kernbench.torch_bridge.processes.process import Process, current

_STACKS = ("python", "all")
_ENABLED = (None, "state", "all")
_CONTEXTS = (None, "state", "alloc", "all")
_ACTIONS = frozenset(
    {
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "snapshot",
    }
)


def install(patches: Patches) -> None:
    """Replace the C++ functions that PyTorch's own functions call."""
    patches.set_all(
        torch._C,
        _cuda_record_memory_history=_record,
        _cuda_record_memory_history_legacy=_record_legacy,
        _cuda_isHistoryEnabled=_is_recording,
        _cuda_memorySnapshot=_snapshot,
    )


def _record(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = 1,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] = (),
) -> None:
    """Begin or end recording; C++ frames are not among the stacks, as there are none.

    Raises:
        UsageError: A value is none of those that PyTorch knows.
    """
    for name, value, known in (
        ("enabled", enabled, _ENABLED),
        ("context", context, _CONTEXTS),
        ("stacks", stacks, _STACKS),
    ):
        if value not in known:
            raise UsageError(
                f"_record_memory_history: {name} must be one of "
                f"{', '.join(map(repr, known))}, but got {value!r}"
            )
    if type(max_entries) is not int or max_entries < 0:
        raise UsageError(
            "_record_memory_history: max_entries must be a number of events, but got "
            f"{max_entries!r}"
        )
    unknown = {*skip_actions} - _ACTIONS
    if unknown:
        raise UsageError(
            f"_record_memory_history: there is no action {', '.join(sorted(unknown))} to skip; "
            f"actions are {', '.join(sorted(_ACTIONS))}"
        )
    process = current()
    memory = process.memory_use
    if memory is None:
        if enabled is None:
            return
        memory = process.memory_use = ProcessMemory(process, None)
        for allocator in process.allocators.values():
            allocator.settle()
            allocator.record(memory)
    assert isinstance(memory, ProcessMemory)
    before = memory.history
    if enabled is None:
        if before is not None:
            before.is_on = False
        return
    memory.history = History(
        process,
        keeps_events=enabled == "all",
        context=context,  # type: ignore[arg-type]  # Checked above.
        most=max_entries,
        skipped=skip_actions,
        before=None if clear_history else before,
    )


def _record_legacy(
    enabled: bool,
    record_context: bool = True,
    max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    record_context_cpp: bool = False,
    *_: Any,
) -> None:
    context = "all" if trace_alloc_record_context else "state" if record_context else None
    _record("all" if enabled else None, context, max_entries=max_entries)


def _is_recording() -> bool:
    history = _history_of(current())
    return history is not None and history.is_on


def _history_of(process: Process) -> History | None:
    memory = process.memory_use
    return memory.history if isinstance(memory, ProcessMemory) else None


def _snapshot(asked: Any = None) -> dict[str, Any]:
    """Return the state of the calling process's memory, as a dict of PyTorch's.

    ``asked`` may be the id of a pool, and whether to include what was recorded.
    """
    process = current()
    pool = (0, 0) if asked is None else tuple(asked)[:2]
    with_traces = asked is None or len(asked) < 3 or asked[2]
    history = _history_of(process)
    settings = process.session.memories.settings_of(process)
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(process.session.num_devices)]
    for sip_id, allocator in sorted(process.allocators.items()):
        device = sip_id - process.first_sip
        values = [_segment(device, blocks) for blocks in allocator.segments()]
        segments += [item for item in values if pool == (0, 0) or item["segment_pool_id"] == pool]
        if history is not None and with_traces:
            traces[device] = history.events_of(allocator)
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": settings.text,
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": settings.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {},
        },
        "external_annotations": [],
    }


def _segment(device: int, blocks: list[MemoryBlock]) -> dict[str, Any]:
    first = blocks[0]
    used = sum(block.size for block in blocks if not block.is_free)
    return {
        "device": device,
        "address": address_of(first),
        "total_size": sum(block.size for block in blocks),
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(block.asked_bytes for block in blocks if not block.is_free),
        "stream": stream_of(first),
        "segment_type": "small" if first.pool[1] else "large",
        "segment_pool_id": pool_of(first),
        "is_expandable": first.is_expandable,
        "frames": [],
        "blocks": [
            {
                "address": address_of(block),
                "size": block.size,
                "requested_size": 0 if block.is_free else block.asked_bytes,
                "state": "inactive" if block.is_free else "active_allocated",
                "frames": [] if block.is_free else shown(block.frames),
            }
            for block in blocks
        ],
    }
