"""``torch.ahbm``: which SIP the calling rank uses, and its state."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from kernbench.errors import UsageError
from kernbench.memory import DeviceMemory
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.base.streams import DeviceStream, Event, using
from kernbench.runtime_api.tensors.device import check_sip, sip_of_device


class Ahbm:
    """The device module of a run, as ``torch.cuda`` is for CUDA."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def is_available(self) -> bool:
        """Return True: every run has devices."""
        return True

    def device_count(self) -> int:
        """Return the number of SIPs."""
        return self._run.machine.num_sips

    def set_device(self, device: Any) -> None:
        """Bind the calling rank to a SIP (ADR-0024 D10): new tensors and launches go there.

        Raises:
            UsageError: There is no such SIP, or another rank is bound to it.
        """
        run = self._run
        state = run.rank_state
        if isinstance(device, int):
            sip_id = check_sip(device, run.machine.num_sips)
        else:
            sip_id = sip_of_device(device, state.sip_id, run.machine)
        for rank in run.simulation.ranks:
            other = rank.local
            if other is not state and other.bound and other.sip_id == sip_id:
                raise UsageError(
                    f"rank {state.rank} cannot be bound to SIP {sip_id}: rank {other.rank} "
                    "already is, and a SIP has one rank"
                )
        state.sip_id = sip_id
        state.bound = True

    def current_device(self) -> int:
        """Return the SIP that the calling rank is bound to."""
        return self._run.rank_state.sip_id

    def synchronize(self, device: Any = None) -> None:
        """Block the calling rank until all streams of a SIP, by default its own, are idle."""
        run = self._run
        run.synchronize(sip_of_device(device, run.rank_state.sip_id, run.machine))

    def Stream(self, device: Any = None, priority: int = 0) -> DeviceStream:  # noqa: N802 - torch's
        """Return a new stream of a SIP, by default the calling rank's; priorities are ignored."""
        run = self._run
        return run.new_stream(sip_of_device(device, run.rank_state.sip_id, run.machine))

    def Event(self, enable_timing: bool = False) -> Event:  # noqa: N802 - torch's name
        """Return a new event, not recorded yet; timing is always enabled, in modeled time."""
        return Event(self._run)

    def stream(self, stream: DeviceStream | None) -> AbstractContextManager[None]:
        """Return a context in which the calling rank's work goes to ``stream``."""
        return using(self._run, stream)

    def current_stream(self, device: Any = None) -> DeviceStream:
        """Return the stream that the calling rank's work goes to."""
        run = self._run
        sip_id = sip_of_device(device, run.rank_state.sip_id, run.machine)
        current = run.current_stream()
        return current if current.sip_id == sip_id else run.default_stream(sip_id)

    def default_stream(self, device: Any = None) -> DeviceStream:
        """Return the stream of work that names no other."""
        run = self._run
        return run.default_stream(sip_of_device(device, run.rank_state.sip_id, run.machine))

    def memory_allocated(self, device: Any = None) -> int:
        """Return the bytes of HBM that live tensors hold on a SIP."""
        return self._memory(device).used_bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the most that ``memory_allocated`` has been."""
        return self._memory(device).peak_bytes

    def _memory(self, device: Any) -> DeviceMemory:
        run = self._run
        return run.devices.memory(sip_of_device(device, run.rank_state.sip_id, run.machine))
