"""Stream commands that move or set bytes without a kernel: fills and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kernbench.clock import StreamCommand
from kernbench.memory import Buffer
from kernbench.op_log import Template
from kernbench.runtime_api.base.ordering import Noted, noting
from kernbench.runtime_api.base.run import Run

Record = Callable[[], None]


class DeviceCommand(StreamCommand):
    """A stream command with a fixed template that lands in the op log when it ends."""

    blocks_host = False
    """Whether PyTorch's call returns only when it has ended, so that no other wait is needed."""

    def __init__(
        self,
        run: Run,
        sip_id: int,
        template: Template,
        target: Buffer | None = None,
        addresses: tuple[int, ...] = (),
        record: Record | None = None,
    ) -> None:
        super().__init__(run.simulation.env, template.name)
        self.run = run
        self.sip_id = sip_id
        self.rank = run.rank_state.rank
        self.template: Template = template
        self.target = target
        """The buffer that is written, or None."""
        if template.name in ("fill", "copy"):
            self.engine = run.devices.sip(sip_id).pes
        self.stream = run.queue_for(sip_id).name
        self.addresses = addresses
        self._record = record

    def note(self, touches: list[Noted]) -> None:
        """Make the record note what the command touches."""
        self._record = noting(touches, self._record)

    def begin(self) -> int:
        cache = self.run.devices.sip(self.sip_id).cache
        for address in self.addresses:
            cache.touch(address, address + self.template.hbm_bytes // len(self.addresses))
        return self.template.duration_ps

    def finish(self) -> None:
        self.ended_by = self.run.recorder.command(
            self.template,
            self.rank,
            self.sip_id,
            self.start_ps,
            self.end_ps,
            self.stream,
            self.after,
            self.addresses,
        )
        if self._record is not None:
            self.run.replay_queue.push(self, self._record)
            # The buffers a record holds must not live as long as the handle.
            self._record = None
        self.target = None

    def describe(self) -> str:
        return f"{self.template.name} on SIP {self.sip_id} (rank {self.rank})"


class Write(DeviceCommand):
    """A command that writes ``size_bytes`` of a buffer and reads no other."""

    template_name: Literal["fill", "copy_from_host"]

    def __init__(
        self, run: Run, target: Buffer, size_bytes: int, record: Record | None = None
    ) -> None:
        template = run.transfers.build(self.template_name, target.sip_id, size_bytes)
        super().__init__(run, target.sip_id, template, target, (target.address,), record)


class Fill(Write):
    """Set bytes of HBM: what ``zeros``, ``full``, ``rand`` and ``fill_`` cost."""

    template_name: Literal["fill", "copy_from_host"] = "fill"


class HostToDevice(Write):
    """Copy bytes from the host over the host link."""

    blocks_host = True
    template_name: Literal["fill", "copy_from_host"] = "copy_from_host"


class DeviceToHost(DeviceCommand):
    """Copy ``size_bytes`` to the host over the host link."""

    def __init__(self, run: Run, sip_id: int, size_bytes: int) -> None:
        super().__init__(run, sip_id, run.transfers.build("copy_to_host", sip_id, size_bytes))


class DeviceCopy(DeviceCommand):
    """Copy ``size_bytes`` inside one SIP's HBM."""

    def __init__(
        self, run: Run, target: Buffer, source: Buffer, size_bytes: int, record: Record
    ) -> None:
        template = run.transfers.build("copy", target.sip_id, size_bytes)
        addresses = (source.address, target.address)
        super().__init__(run, target.sip_id, template, target, addresses, record)
