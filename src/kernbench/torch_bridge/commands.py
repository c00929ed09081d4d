"""Operations of PyTorch as commands on a device's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.sim_engine import StreamCommand

if TYPE_CHECKING:
    from kernbench.op_log import Template
    from kernbench.runtime_api import Run


class OperationCommand(StreamCommand):
    """One operation, with a schedule that does not change; lands in the op log when it ends.

    A kernel has the device's PEs to itself while it runs; copies to and from the host do not take
    them.
    """

    def __init__(self, run: Run, template: Template, takes_pes: bool) -> None:
        super().__init__(run.simulation.env, template.name)
        self._run = run
        self._template = template
        state = run.rank_state
        self._rank = state.rank
        self._sip_id = state.sip_id
        self._stream = run.queue_for(state.sip_id).name
        if takes_pes:
            self.engine = run.pes(state.sip_id)

    def begin(self) -> int:
        self.hbm_ps = self._template.hbm_ps
        return self._template.duration_ps

    def finish(self) -> None:
        self._run.log(
            self._template,
            (self._rank,),
            (self._sip_id,),
            (self.start_ps,),
            (self.end_ps,),
            self._stream,
        )

    def describe(self) -> str:
        return f"{self._template.name} on SIP {self._sip_id} (rank {self._rank})"
