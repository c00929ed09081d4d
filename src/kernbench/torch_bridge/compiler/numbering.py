"""Devices as the compiler's files number them: what is kept for one rank serves others.

A graph that a rank compiles names the rank's device. In the keys and files of the compiler that
device has number 0, and device 0 has its number: the numbers of the two are exchanged, by each rank
for itself. Where a file is run, numbers are exchanged again. So a file holds for each rank whose
graph is the same but for that, and one with a device that is not the rank's own is read right too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, current_index
from kernbench.torch_bridge.processes.process import Process, current

_IN_FILES = re.compile(
    rf"\b(device\(type='{DEVICE_TYPE}', index=|DeviceProperties\(type='{DEVICE_TYPE}', index="
    rf"|torch\.{DEVICE_TYPE}\._DeviceGuard\()(\d+)"
)
"""Where PyTorch writes the index of a device into code."""
_SETTING = re.compile(rf"\btorch\.{DEVICE_TYPE}\.set_device\(\d+\)")
"""What it writes behind each guard of a device, which has set the device already."""


class Numbering:
    """The devices that the ranks of a run have as their own."""

    def __init__(self) -> None:
        self._own: WeakKeyDictionary[Process, int] = WeakKeyDictionary()

    def begin(self, inputs: Iterable[Any]) -> None:
        """Choose the rank's own device, at its first graph: that of an input, or the current."""
        process = current()
        if process not in self._own:
            devices = (device_of(item) for item in inputs if isinstance(item, torch.Tensor))
            indices = (device.index for device in devices if device.type == DEVICE_TYPE)
            self._own[process] = next(indices, current_index())

    def exchanged(self, index: int) -> int:
        """Return the number in files of a device, or the device of a number in files."""
        self.begin(())
        own = self._own[current()]
        return {own: 0, 0: own}.get(index, index)

    def exchanged_device(self, device: torch.device) -> torch.device:
        """Return a device of files for one of the rank's, or the other way around."""
        if device.type != DEVICE_TYPE or device.index is None:
            return device
        return torch.device(DEVICE_TYPE, self.exchanged(device.index))

    def exchanged_text(self, code: str) -> str:
        """Return code with the numbers of devices exchanged."""
        return _IN_FILES.sub(lambda result: result[1] + str(self.exchanged(int(result[2]))), code)

    def written(self, code: str) -> str:
        """Return code as it is kept, which sets no device by its number but in guards."""
        return self.exchanged_text(_SETTING.sub("pass", code))

    def read(self, module: Any) -> None:
        """Let the code of a kept module, once it is run, mean devices of the rank that runs it."""
        names = vars(module)
        if names.get("device") is torch.device:
            names["device"] = self._made

    def is_of_file(self, names: dict[str, Any]) -> bool:
        """Return whether globals are those of a file that means devices so."""
        return names.get("device") == self._made

    def _made(self, *args: Any, **kwargs: Any) -> torch.device:
        return self.exchanged_device(torch.device(*args, **kwargs))
