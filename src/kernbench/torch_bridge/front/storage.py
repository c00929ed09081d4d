"""Checkpoints of PyTorch programs, which take the time of the machine's storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernbench.hardware import Machine, ceil_ps, transfer_ps
from kernbench.runtime_api import Run
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE, Process

_PS_PER_MS = 10**9


class SharedStorage:
    """Storage in simulated time: each node, and the file system, serve in order of arrival."""

    def __init__(self, machine: Machine) -> None:
        spec = machine.spec.storage
        assert spec is not None
        self._spec = spec
        self._latency_ps = ceil_ps(spec.latency_ms * _PS_PER_MS)
        self._free_ps: dict[int, int] = {}
        """When the storage of each node is free; -1 is the file system."""

    def end_ps(self, node: int, size_bytes: int, now_ps: int) -> int:
        """Return when a node has moved some bytes that it begins with now."""
        return self._latency_ps + max(
            self._serve(node, self._spec.node_gbps, size_bytes, now_ps),
            self._serve(-1, self._spec.filesystem_gbps, size_bytes, now_ps),
        )

    def _serve(self, server: int, gbps: Fraction, size_bytes: int, now_ps: int) -> int:
        begin_ps = max(now_ps, self._free_ps.get(server, 0))
        end_ps = self._free_ps[server] = begin_ps + transfer_ps(size_bytes, gbps)
        return end_ps


def install(patches: Patches, run: Run) -> None:
    """Let ``torch.save`` and ``torch.load`` of files take time, if the machine has storage."""
    if run.machine.spec.storage is None:
        return
    storage = SharedStorage(run.machine)
    save, load = torch.save, torch.load

    @wraps(save)
    def save_in_time(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        process = HERE.process
        if process is None or HERE.is_foreign or not _is_file(f):
            save(obj, f, *args, **kwargs)
            return
        # A file that is written by its name is written anew.
        before = 0 if isinstance(f, (str, os.PathLike)) else _size(f)
        save(obj, f, *args, **kwargs)
        # Without data there is less in the file than in the tensors.
        written = max(_size(f) - before, _bytes_of(obj))
        with _left_half_written(f):
            _pass(storage, process, written, "torch.save")

    @wraps(load)
    def load_in_time(f: Any, *args: Any, **kwargs: Any) -> Any:
        time = load(f, *args, **kwargs)
        process = HERE.process
        if process is not None and not HERE.is_foreign and _is_file(f):
            size = 0 if hasattr(f, "fileno") else _size(f)
            _pass(storage, process, max(size, _bytes_of(time)), "torch.load")
        return time

    patches.set(torch, "save", save_in_time)
    patches.set(torch.serialization, "save", save_in_time)
    patches.set(torch, "load", load_in_time)
    patches.set(torch.serialization, "load", load_in_time)


def _pass(storage: SharedStorage, process: Process, size_bytes: int, label: str) -> None:
    """Let the calling process wait for the storage."""
    run, host = process.session.run, process.host
    if run.keeper is not None:
        run.keeper.refused["its checkpoints take the time of storage"] = None
    host.catch_up()
    since_ps = run.simulation.now_ps
    end_ps = storage.end_ps(process.node, size_bytes, since_ps)
    run.simulation.sleep(end_ps - since_ps)
    run.recorder.span((process.rank, "storage", label, since_ps, end_ps))


@contextmanager
def _left_half_written(f: Any) -> Iterator[None]:
    """Cut a file where its process ends while it writes it."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, TypeError, ValueError):
            os.truncate(f, Path(f).stat().st_size // 2)
        raise


def _is_file(f: Any) -> bool:
    """Return whether something that PyTorch writes to or reads from is a file on a disk."""
    if isinstance(f, (str, os.PathLike)):
        return True
    try:
        return f.fileno() >= 0
    except (AttributeError, OSError):
        return False


def _size(f: Any) -> int:
    if isinstance(f, (str, os.PathLike)):
        path = Path(f)
        return path.stat().st_size if path.exists() else 0
    return int(f.tell())


def _bytes_of(obj: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(obj) if isinstance(leaf, torch.Tensor))
