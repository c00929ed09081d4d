"""Copies from and to pinned memory that may be under way when the host goes on to use it.

Data is computed at once, so a host that does not wait gets what a device may not have copied yet.
Without the sanitizer it is said in the report where simulated time shows it (ADR-0228).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernbench.clock import user_site
from kernbench.torch_bridge.placement.residence import storage_of

if TYPE_CHECKING:
    from torch import Tensor

    from kernbench.clock import StreamCommand
    from kernbench.torch_bridge.processes.process import Process


def begin_copy(process: Process, host: Tensor, command: StreamCommand, *, writes: bool) -> None:
    """Note that a copy reads or writes a tensor of pinned memory, and that the host goes on."""
    if process.order is None and getattr(storage_of(host), "_kernbench_pinned", False):
        process.copies = [each for each in process.copies if not each[1].done]
        process.copies.append((storage_of(host), command, writes, str(user_site())))


def look_at_copies(process: Process, used: Iterable[tuple[Any, bool]], what: str) -> None:
    """Say in the report if the host uses (tensor, whether it writes) what is being copied."""
    for tensor, writes in used:
        try:
            number = storage_of(tensor)._cdata
        except (NotImplementedError, RuntimeError):
            continue
        for storage, command, is_written, site in process.copies:
            if storage._cdata != number or not (writes or is_written) or command.done:
                continue
            process.host.reach()
            if not command.done:
                process.session.unordered.setdefault(
                    f"{what} at {user_site()} {'writes' if writes else 'reads'} pinned memory "
                    f"before the copy at {site}, with non_blocking=True, has ended"
                )
