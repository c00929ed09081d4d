"""How long a rank's host takes for each part of its work, in picoseconds."""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction
from operator import add
from typing import Any

import torch

from kernbench.hardware import PS_PER_US, HostSpec, ceil_ps


class HostPart(IntEnum):
    """What an operation is to the host that calls it."""

    VIEW = 0
    FACTORY = 1
    ELEMENTWISE = 2
    IN_PLACE = 3
    REDUCTION = 4
    PRODUCT = 5
    FOREACH = 6
    FREE = 7
    """It has a cost of its own elsewhere, or none: collectives, notes to PyTorch."""
    LOG_SUM_EXP = 8
    """It calls two reductions and seven elementwise operations below Python, one after another
    (``logsumexp_out_impl`` in ATen)."""
    PLANNED = 9
    """cuDNN does it, by a plan that is looked up; or three kernels do, with memory between them."""
    BATCH_NORM = 10
    """The same in training; one kernel without."""


_PRODUCTS = ("mm", "bmm", "matmul", "attention", "linear", "_rnn", "lstm", "gru")
_PLANNED = ("convolution", "batch_norm", "group_norm")
# Without a tag for reductions, although each reads a whole row per result.
_OVER_ROWS = ("softmax", "norm", "cumsum", "cumprod", "sort", "topk", "nll_loss", "cross_entropy",
              "pool")  # fmt: skip


def host_part(func: Any, full_name: str, *, is_free: bool) -> HostPart:
    """Return what an overload is to the host, by its schema, its tags and its name."""
    name = full_name.split(".")[1]
    if func.namespace not in ("aten", "prims"):
        return HostPart.FREE if is_free else HostPart.ELEMENTWISE
    if name.startswith(("_foreach", "_fused_adam", "_fused_sgd", "_amp_foreach")):
        return HostPart.FOREACH
    if is_free:
        is_factory = name.startswith(("empty", "new_empty"))
        return HostPart.FACTORY if is_factory else HostPart.VIEW
    if not name.startswith("_thnn_fused") and any(product in name for product in _PRODUCTS):
        return HostPart.PRODUCT
    if name == "native_batch_norm":
        return HostPart.BATCH_NORM
    if any(planned in name for planned in _PLANNED):
        return HostPart.PLANNED
    if name == "logsumexp":
        return HostPart.LOG_SUM_EXP
    if torch.Tag.reduction in func.tags or any(row in name for row in _OVER_ROWS):
        return HostPart.REDUCTION
    return HostPart.IN_PLACE if name.endswith("_") else HostPart.ELEMENTWISE


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
        recorded_ps = [0 if item is HostPart.FREE else ps(of.recorded_us) for item in HostPart]
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
