"""The host-read barrier (ADR-0027 D0.5): the only way from device bytes to the host.

Every method through which a program sees device data calls :func:`read` with its own name. The
set of names is closed; ``tests/runtime_api/test_host_read.py`` fails when another method of
``Tensor`` reaches a buffer's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.dtypes import Array
from kernbench.errors import InternalError, NoDataError
from kernbench.runtime_api.base.transfers import DeviceToHost
from kernbench.runtime_api.memory.storage import check_not_in_flight, device_array

if TYPE_CHECKING:
    from kernbench.runtime_api.tensors.tensor import Tensor

HOST_READS = frozenset(
    {
        "numpy",
        "cpu",
        "data",
        "__getitem__",  # with an index array or mask; a basic index is a view and reads nothing
        "__repr__",
        "item",
        "tolist",
        "copy_",  # its source, when that is on another device
        "assert_close",
    }
)

# Looking on is free: a real program does not move these bytes to do its work.
_FREE = frozenset({"__repr__", "assert_close"})


def read(tensor: Tensor, entry: str) -> Array:
    """Return the elements of ``tensor`` as a read-only view of the device's bytes.

    Waits for the command that writes the tensor, lets the copy to the host take its time, then
    replays what has completed. A collective that is still in flight is not waited for: it needs
    other ranks, and its own ``wait()`` covers it.

    Raises:
        NoDataError: The run has no data.
        UsageError: An unfinished collective uses the tensor.
    """
    if entry not in HOST_READS:
        raise InternalError(f"{entry} reads device data but is not a registered host read")
    run = tensor.context.run
    if not run.has_data:
        raise NoDataError(
            f"{entry} of {tensor.label} needs data, but this run has none (data=False, --no-data); "
            "guard the read with `if torch.has_data:`"
        )
    buffer = tensor.buffer
    check_not_in_flight(tensor, entry, writes=False)
    if buffer.last_writer is not None:
        run.block_on(buffer.last_writer)
    if entry not in _FREE:
        run.wait(run.submit(DeviceToHost(run, tensor.sip_id, tensor.nbytes), reads=tensor))
    run.replay_queue.drain()
    array = device_array(buffer, tensor.dtype, tensor.offset, tensor.shape, tensor.stride())
    array.flags.writeable = False
    return array
