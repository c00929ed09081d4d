"""Memory of the host as a device's tensors: one address for both (CUDA's unified addressing)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.placement.names import CPU, DEVICE_TYPE, META, unobserved
from kernbench.torch_bridge.placement.residence import reside, storage_of
from kernbench.torch_bridge.processes.process import current


def view_of_host(host: Tensor) -> Tensor:
    """Return a tensor of the current device in the memory of a host's tensor.

    Writes to one show in the other, in a run without data, too. Its address is one of the device's
    memory, of which it takes as much.
    """
    storage = storage_of(host)
    with unobserved():
        whole = torch.empty(0, dtype=torch.uint8, device=CPU).set_(storage)
        if current().session.run.has_data:
            shared = torch.from_numpy(whole.numpy()).untyped_storage()
        else:
            shared = torch.UntypedStorage(storage.nbytes(), device=META)
            shared._known = storage
        view = torch.empty(0, dtype=host.dtype, device=shared.device)
        view.set_(shared, host.storage_offset(), host.shape, host.stride())
    device = torch.device(DEVICE_TYPE, torch.cuda.current_device())
    reside(shared, device, "a view of the host's memory")
    current().session.views_host = True
    return view
