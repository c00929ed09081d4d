"""How long a rank's host takes for each part of its work, in picoseconds."""

from __future__ import annotations

from fractions import Fraction
from operator import add
from typing import TYPE_CHECKING

from kernbench.hardware import PS_PER_US, ceil_ps
from kernbench.torch_bridge.base.host_parts import HostPart

if TYPE_CHECKING:
    from kernbench.hardware import HostSpec


class HostTimes:
    """The numbers of a machine's ``host`` section."""

    def __init__(self, spec: HostSpec) -> None:
        def ps(time_us: Fraction, share: Fraction = Fraction(1)) -> int:
            return ceil_ps(time_us * share * spec.slowdown * PS_PER_US)

        of = spec.operation
        parts = {
            HostPart.VIEW: of.view_us,
            HostPart.FACTORY: of.factory_us,
            HostPart.ELEMENTWISE: of.elementwise_us,
            HostPart.IN_PLACE: of.in_place_us,
            HostPart.REDUCTION: of.reduction_us,
            HostPart.PRODUCT: of.product_us,
            HostPart.FOREACH: of.foreach_us,
            HostPart.FREE: Fraction(0),
            HostPart.PLANNED: of.planned_us,
            HostPart.BATCH_NORM: of.reduction_us,
            HostPart.LOG_SUM_EXP: of.reduction_us
            + spec.backward_share * (2 * of.reduction_us + 7 * of.elementwise_us),
        }
        in_order = [parts[host_part] for host_part in HostPart]
        self.called = tuple(ps(fraction) for fraction in in_order)
        """The time of an operation that autograd does not record, by :class:`HostPart`."""
        in_cxx = {**parts, HostPart.ELEMENTWISE: spec.cast_us}
        self.called_in_cxx = tuple(ps(in_cxx[host_part]) for host_part in HostPart)
        """The same where autocast calls it: its casts."""
        recorded_ps = [
            0 if host_part is HostPart.FREE else ps(of.recorded_us) for host_part in HostPart
        ]
        self.recorded = tuple(map(add, self.called, recorded_ps))
        """The time of an operation that autograd records."""
        self.recorded_in_cxx = tuple(map(add, self.called_in_cxx, recorded_ps))
        """The same where autocast calls it."""
        plain = (HostPart.VIEW, HostPart.FACTORY, HostPart.FREE)
        self.in_backward = tuple(
            ps(time_us, spec.backward_share) + (0 if part in plain else ps(spec.backward_node_us))
            for part, time_us in zip(HostPart, in_order, strict=True)
        )
        """The time of an operation that a backward node calls, with the node."""
        self.foreach_tensor_ps = ps(of.foreach_tensor_us)
        self.python_call_ps = ps(spec.python_call_us)
        self.uncounted_ps = self.python_call_ps * spec.python_calls_per_operation
        """The Python of an operation where calls are not counted."""
        self.event_ps = ps(spec.event_us)
        self.collective_ps = ps(spec.collective_us)
        self.read_ps = ps(spec.read_us)
        self.cuda_malloc_ps = ps(spec.cuda_malloc_us)
        self.message_ps = ps(spec.message_us)
        self.message_tensor_ps = ps(spec.message_tensor_us)
        self.triton_launch_ps = ps(spec.triton_launch_us)
        self.triton_argument_ps = ps(spec.triton_argument_us)
        small = {HostPart.VIEW: spec.compiled_empty_us, HostPart.FACTORY: spec.compiled_empty_us}
        self.in_graph = tuple(ps(small.get(host_part, parts[host_part])) for host_part in HostPart)
        """The time of an operation that a compiled graph calls."""
        self.compiled_call_ps = ps(spec.compiled_call_us)
        self.compiled_guard_ps = ps(spec.compiled_guard_us)
        self.compiled_record_ps = ps(spec.compiled_record_us)
        self.compiled_recorded_ps = ps(spec.compiled_recorded_us)
        self.compiled_node_ps = ps(spec.compiled_node_us)
        self.compiled_output_ps = ps(spec.compiled_output_us)
        self.compiled_wrapper_ps = ps(spec.compiled_wrapper_us)
        self.compiled_launch_ps = ps(spec.compiled_launch_us)
        self.compiled_argument_ps = ps(spec.compiled_argument_us)
        self.compiled_replay_ps = ps(spec.compiled_replay_us)
        self.graph_replay_ps = ps(spec.graph_replay_us)
        self.graph_node_ps = ps(spec.graph_node_us)
