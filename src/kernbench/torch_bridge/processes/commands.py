"""Copies between host and device as commands on a stream."""

from __future__ import annotations

from kernbench.clock import Stream, StreamCommand
from kernbench.op_log import Template
from kernbench.runtime_api import Run


class HostCopy(StreamCommand):
    """A copy that runs concurrently with kernels; it is logged when it ends."""

    def __init__(self, run: Run, template: Template, queue: Stream, sip_id: int) -> None:
        super().__init__(run.simulation.env, template.name)
        self._run = run
        self.template: Template = template
        self._stream = queue.name
        self._rank = run.rank_state.rank
        self._sip_id = sip_id

    def begin(self) -> int:
        return self.template.duration_ps

    def finish(self) -> None:
        self.ended_by = self._run.recorder.command(
            self.template,
            self._rank,
            self._sip_id,
            self.start_ps,
            self.end_ps,
            self._stream,
            self.after,
        )

    def describe(self) -> str:
        return f"{self.template.name} on SIP {self._sip_id} (rank {self._rank})"
