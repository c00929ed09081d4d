"""What a program asks of PyTorch's allocator, by ``PYTORCH_ALLOC_CONF`` or in a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernbench.errors import KernbenchError

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""The first that is set counts. Source: PyTorch's ``AllocatorConfig.h``."""
_EXPANDABLE = "expandable_segments"
_FRACTION = "per_process_memory_fraction"
_TRUTHS = {"True": True, "False": False}
_CHANGING = frozenset(
    {
        "backend",
        "garbage_collection_threshold",
        "large_segment_size_mb",
        "max_non_split_rounding_mb",
        "max_split_size_mb",
        "roundup_power2_divisions",
        "use_cuda_host_register",
    }
)
"""Options that change how memory is assigned, and are not modeled."""
_OTHERS = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_max_power2_size_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "throw_on_cudamalloc_oom",
    }
)
"""Options of the host's memory, and of how calls are made: they change nothing here."""
_OPTION = re.compile(r"\s*([\w]*)\s*:\s*(\[[^\]]*\]|[^,\[\]]*?)\s*(?:,|$)")


class AllocatorSettingsError(KernbenchError, RuntimeError):
    """Settings of the allocator are none that PyTorch knows."""


@dataclass(slots=True, eq=False)
class AllocatorSettings:
    """The settings of one process, for all of its devices."""

    text: str = ""
    """The settings as the program gave them last."""
    expandable_segments: bool = False
    """Whether segments grow where they are, and free parts of them go back to the device."""
    memory_fraction: float | None = None
    """Which share of a device a process may reserve."""
    left_out: set[str] = field(default_factory=set)
    """Options that were asked for, would change how memory is assigned, and are not modeled."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> AllocatorSettings:
        """Return the settings that a process's environment variables ask for."""
        settings = cls()
        settings.read(next((environ[name] for name in VARIABLES if environ.get(name)), ""))
        return settings

    def read(self, text: str) -> None:
        """Take what a text says, as ``expandable_segments:True,backend:native``.

        Raises:
            AllocatorSettingsError: It says what PyTorch does not know.
        """
        position = 0
        while position < len(text):
            option = _OPTION.match(text, position)
            if option is None:
                raise AllocatorSettingsError(
                    f"settings of the allocator are options like name:value with commas between "
                    f"them, but {text!r} has {text[position:]!r}"
                )
            self._take(option[1], option[2])
            position = option.end()
        self.text = text

    def _take(self, name: str, value: str) -> None:
        if name == _EXPANDABLE:
            if value not in _TRUTHS:
                raise AllocatorSettingsError(f"{name} must be True or False, but got {value!r}")
            self.expandable_segments = _TRUTHS[value]
        elif name == _FRACTION:
            self.memory_fraction = _fraction(value)
        elif name in _CHANGING:
            if (name, value) != ("backend", "native"):
                self.left_out.add(name)
        elif name not in _OTHERS:
            known = ", ".join(sorted({_EXPANDABLE, _FRACTION} | _CHANGING | _OTHERS))
            raise AllocatorSettingsError(
                f"Unrecognized key {name!r} in the allocator's settings; keys are {known}"
            )


def _fraction(value: str) -> float:
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise AllocatorSettingsError(f"{_FRACTION} must be from 0 to 1, but got {value!r}")
    return fraction
