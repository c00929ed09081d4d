"""The clocks at which a chip trains: a loop of one product has pauses, training has none."""

from __future__ import annotations

from kernbench.hardware import Machine

_SETTLED_US = 0.001
"""In place of the time in which a clock settles inside a loop: before a step it has."""
_HOT_HOPPER = 0.3
"""What a Hopper's clock loses in training by products of 16 bits, in place of the loss in a loop of
one product with pauses. Fitted to 25 rows of PyTorch's and Megatron's training."""


def training_clocks(machine: Machine) -> dict[str, float]:
    """Return the keys of a machine that training for many steps changes (docs/model/clock.md).

    Products are taken to be of 16 bits. Nothing changes where no loss is known.
    """
    if machine.sip.sustained is None:
        return {}
    changes = {"sip.sustained.half_time_us": _SETTLED_US}
    if machine.spec.kernel_library == "sm90":
        changes["sip.sustained.clock_loss"] = _HOT_HOPPER
    return changes
